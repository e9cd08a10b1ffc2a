"""The table of transfers' errors: rows of devices that ship, and the widths that answers take from it."""

import math

import pytest

from kernelcast.runtime import UsageError
from kernelcast.runtime.catalogue import (
    all_hardware,
    hardware_named,
    measured_hardware,
    transfer_errors,
    transfer_log_half_width,
)
from kernelcast.runtime.hardware.devices import device, devices
from kernelcast.runtime.operators import OPERATORS, Direction

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


def test_every_device_can_be_named_and_donors_were_measured() -> None:
    assert {row.device for row in all_hardware().values()} == set(devices())
    for row in all_hardware().values():
        assert set(row.donors) <= set(measured_hardware())
        assert row.bundle is not None or row.donors
        assert bool(row.data) == (row.bundle is not None)


def test_rows_are_of_measured_devices() -> None:
    found = transfer_errors()
    assert len(found) > 100
    for one in found:
        assert one.origin in measured_hardware()
        assert one.target in devices()
        assert one.key[1] in OPERATORS[one.key[0]].costs
        assert one.rows >= 5
        assert 0 <= abs(one.median_log) <= one.log_half_width + 0.5
    # Matrix products carry over well between devices with tables of their own, and by one source on another's.
    products = {(one.origin, one.target, one.source): one for one in found if one.key == ("gemm", FORWARD)}
    assert products["a100-sxm", "gh200", ""].median_error < 0.08
    assert products["a100-sxm", "h100-sxm", ""].median_error < 0.08
    assert products["a100-sxm", "a100-sxm", "aiconfigurator"].median_error < 0.06


def test_the_pair_s_own_width_counts_where_it_was_measured() -> None:
    own = {(one.origin, one.target): one for one in transfer_errors() if one.key == ("gelu", FORWARD)}
    for (origin, target), one in own.items():
        assert transfer_log_half_width(("gelu", FORWARD), origin, target) == one.log_half_width


def test_else_the_widest_of_the_operator_or_what_its_class_shows() -> None:
    widest = max(one.log_half_width for one in transfer_errors() if one.key == ("gelu", BACKWARD))
    assert transfer_log_half_width(("gelu", BACKWARD), "gh200", "h100-sxm") == widest
    # Within an architecture only such pairs count, where there are any.
    assert device("h100-sxm").architecture == device("gh200-144gb").architecture
    within = [
        one.log_half_width
        for one in transfer_errors()
        if one.key == ("gemm", FORWARD)
        and not one.by
        and one.origin != one.target
        and one.is_within_architecture
    ]
    assert transfer_log_half_width(("gemm", FORWARD), "h100-sxm", "gh200-144gb") == max(within)
    assert 0 < transfer_log_half_width(("bias_add", FORWARD), "a100-sxm", "mi300x") < 1.5


@pytest.mark.parametrize("name", ["h100-sxm", "H100 SXM", "NVIDIA H100 80GB HBM3"])
def test_devices_are_named_in_any_way(name: str) -> None:
    assert hardware_named(name).name == "h100-sxm"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("H100", "nearest are h100-sxm, h100-pcie, h100-nvl, h100-sxm-96gb$"),
        ("tpu", "known are a100-sxm, gh200, "),
    ],
)
def test_a_part_of_a_name_is_answered_by_those_that_have_it(name: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        hardware_named(name)


def test_one_chip_with_other_memory_is_off_by_the_ratio_of_memories_at_most() -> None:
    ratio = device("a100-sxm").memory_bytes_per_s / device("a100-sxm-40gb").memory_bytes_per_s
    assert transfer_log_half_width(("adam", Direction.ONCE), "a100-sxm", "a100-sxm-40gb") == pytest.approx(
        math.log(ratio)
    )
    # Another power limit is another chip.
    assert transfer_log_half_width(("adam", Direction.ONCE), "a100-sxm", "a100-pcie") > math.log(1.5)
