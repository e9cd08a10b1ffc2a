"""Rates that devices hold under load."""

import pytest

from kernelcast.runtime.hardware.devices import device
from kernelcast.runtime.hardware.limits import (
    clock_scale,
    sustained,
    sustained_flops_per_s,
    sustained_origin,
)


def test_a_device_of_its_own_and_those_of_its_architecture() -> None:
    a100, share = device("a100-sxm"), sustained()["a100-sxm"].share
    assert sustained_flops_per_s(a100, "bfloat16") == pytest.approx(share * 312e12)
    assert sustained_origin(a100) is a100
    # 400 W as the one with 80 GB, 250 W nearer to the PCIe card's 300 W.
    assert sustained_origin(device("a100-sxm-40gb")) is a100
    assert sustained_origin(device("a100-pcie-40gb")) is device("a100-pcie")
    assert sustained_flops_per_s(device("gh200"), "float16") == pytest.approx(
        sustained()["h100-sxm"].share * device("gh200").flops_per_s["float16"]
    )


@pytest.mark.parametrize(
    ("name", "dtype"), [("mi250x", "bfloat16"), ("a100-sxm", "float32"), ("l40s", "float16")]
)
def test_not_known(name: str, dtype: str) -> None:
    assert sustained_flops_per_s(device(name), dtype) is None


def test_no_device_holds_more_than_its_bursts_and_its_peak() -> None:
    for one in sustained().values():
        assert 0 < one.share <= (one.burst or one.share) < 1
        assert one.rows >= 10 or (one.rows, one.burst) == (1, None)


def test_rates_that_a_maker_published() -> None:
    mi325x = device("mi325x")
    assert sustained_origin(mi325x) is mi325x
    assert sustained_flops_per_s(mi325x, "bfloat16") == pytest.approx(831.4e12, rel=1e-3)
    assert sustained_flops_per_s(mi325x, "float8_e4m3fn") == pytest.approx(1408e12, rel=1e-3)


def test_products_in_8_bit_have_a_share_of_their_own() -> None:
    h100, h200 = device("h100-sxm"), device("h200-sxm")
    share = sustained()["h100-sxm-float8"].share
    assert sustained_flops_per_s(h100, "float8_e4m3fn") == pytest.approx(share * 1978.9e12)
    assert sustained_origin(h200, "float8_e5m2") is h100
    # No Ampere device computes in 8 bit.
    assert sustained_flops_per_s(device("a100-sxm"), "float8_e4m3fn") is None


@pytest.mark.parametrize("name", ["h100-sxm", "a100-sxm", "b200-sxm"])
def test_rates_follow_a_power_of_the_power_limit(name: str) -> None:
    of = device(name)
    half, quarter = (clock_scale(of, share * of.power_w) for share in (0.5, 0.25))
    assert (clock_scale(of), clock_scale(of, of.power_w)) == (1.0, 1.0)
    assert 0.4 < half < 1
    assert quarter == pytest.approx(half**2)
    rates = [sustained_flops_per_s(of, "bfloat16", share * of.power_w) or 0.0 for share in (1.0, 0.5)]
    assert rates[1] / rates[0] == pytest.approx(half)
