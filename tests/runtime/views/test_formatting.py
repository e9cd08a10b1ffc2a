"""How numbers are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime.bundle.manifest import UNKNOWN_MOMENT
from kernelcast.runtime.views.formatting import (
    amount,
    between,
    gibibytes,
    measured,
    percent,
    rate,
    seconds,
    shortened_apart,
    value_range,
    value_ranges,
)


def test_sizes_are_binary() -> None:
    sizes = [0, 100, 5000, 300 << 10, 2 << 30, 80 << 30]
    assert list(map(gibibytes, sizes)) == ["0.0 GiB", "0.1 KiB", "4.9 KiB", "0.3 MiB", "2.0 GiB", "80.0 GiB"]


def test_large_sizes_are_tebibytes() -> None:
    assert [gibibytes(9_999 << 30), gibibytes(43_062 << 30)] == ["9,999.0 GiB", "42.1 TiB"]


def test_times_are_in_the_unit_that_reads_best() -> None:
    times = [0, 4.5e-6, 0.0123, 1, 119.96, 120, 7_199, 7_200, 172_799, 172_800, 86_400 * 31_113]
    assert list(map(seconds, times)) == [
        "0 µs", "4.500 µs", "12.30 ms", "1.000 s", "120.0 s", "2.000 min", "120.0 min", "2.000 h", "48.00 h",
        "2.000 days", "31,113 days",
    ]  # fmt: skip


def test_times_that_are_compared_have_one_unit() -> None:
    assert [seconds(time_s, like=54.66) for time_s in (54.66, 122.4, 0.5)] == [
        "54.66 s",
        "122.4 s",
        "0.500 s",
    ]
    assert between(5.425, 8.156) == "5.425 to 8.156 s"
    assert between(110, 130, like=120) == "1.833 to 2.167 min"


def test_slow_rates_are_not_zero() -> None:
    assert list(map(rate, [80411.3, 99.96, 12.34, 0.04263])) == ["80,411", "100", "12.3", "0.0426"]


def test_a_bundle_without_a_date_shows_none() -> None:
    assert measured("2026-01-02T03:04:05Z") == "measured until 2026-01-02T03:04:05Z"
    assert "1970" not in measured(UNKNOWN_MOMENT)


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0.5, "0.5 µs"),
        (12.345, "12.3 µs"),
        (999.4, "999 µs"),
        (999.6, "1 ms"),
        (2e6, "2 s"),
    ],
)
def test_times(time_us: float, text: str) -> None:
    assert amount(time_us * 1e-6, "s") == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (640, "", "640"),
        (999.9, "B", "1 kB"),
        (134_217_728, "B", "134 MB"),
        (2.1e9, "FLOP", "2.1 GFLOP"),
        (0, "B", "0 B"),
        (1.25e16, "FLOP", "12.5 PFLOP"),
    ],
)
def test_amounts(value: float, unit: str, text: str) -> None:
    assert amount(value, unit) == text


def test_fractions() -> None:
    assert percent(0.0312) == "3.1 %"
    assert percent(0.9, digits=0) == "90 %"
    assert percent(None) == "–"
    assert percent(float("inf")) == "no number"


def test_ranges() -> None:
    assert value_range(4, 8) == "4–8"
    assert value_range(16, 16) == "16"
    assert value_range(99_999, 134_217_728) == "99999–134 M"
    assert value_ranges([(4, 8), (1024, 5120), (7, 7)]) == "4–8 × 1024–5120 × 7"


@given(st.lists(st.text(alphabet="ab<:,", max_size=60), max_size=8), st.integers(24, 40))
def test_cut_names_of_different_kernels_differ(names: list[str], most: int) -> None:
    cut = shortened_apart(names, most)
    assert len(set(cut)) == len(set(names))
    assert max(map(len, cut), default=0) <= most


def test_a_cut_name_shows_where_it_differs() -> None:
    kernel = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::{}Functor<float>, at::detail::Array>"
    )
    [add, copy, gemm] = shortened_apart([kernel.format("Add"), kernel.format("Copy"), "volta_sgemm"], 48)
    assert add == "void at::native:…ve::AddFunctor<float>, at:…"
    assert copy == "void at::native:…ve::CopyFunctor<float>, at…"
    assert gemm == "volta_sgemm"
