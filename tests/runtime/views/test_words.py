"""Numbers as people read them."""

from kernelcast.runtime.bundle.manifest import UNKNOWN_MOMENT
from kernelcast.runtime.views.words import gibibytes, measured, rate


def test_sizes_are_binary() -> None:
    sizes = [0, 100, 5000, 300 << 10, 2 << 30, 80 << 30]
    assert list(map(gibibytes, sizes)) == ["0.0 GiB", "0.1 KiB", "4.9 KiB", "0.3 MiB", "2.0 GiB", "80.0 GiB"]


def test_slow_rates_are_not_zero() -> None:
    assert list(map(rate, [80411.3, 99.96, 12.34, 0.04263])) == ["80,411", "100", "12.3", "0.0426"]


def test_a_bundle_without_a_date_shows_none() -> None:
    assert measured("2026-01-02T03:04:05Z") == "measured until 2026-01-02T03:04:05Z"
    assert "1970" not in measured(UNKNOWN_MOMENT)
