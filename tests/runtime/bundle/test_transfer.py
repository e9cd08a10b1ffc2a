"""A regressor of one device answers for another: by the roofline of both, corrected by few points, there and back."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import DataError
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.bundle.file import read_bundle, write_bundle
from kernelcast.runtime.bundle.transfer import Correction, Likeness, Transfer, centred, positions
from kernelcast.runtime.hardware.devices import device
from kernelcast.runtime.hardware.limits import LAUNCH_FLOOR_US, Rates
from kernelcast.runtime.operators import OPERATORS, Direction

SLOW = Rates(device="slow", flops_per_s=1e14, bytes_per_s=1e12)
FAST = Rates(device="fast", flops_per_s=4e14, bytes_per_s=2e12)
RATE = st.floats(1e6, 1e18)
GELU = "gelu", Direction.FORWARD
GEMM = "gemm", Direction.FORWARD


def rates(flops_per_s: float, bytes_per_s: float) -> Rates:
    return Rates(device="made up", flops_per_s=flops_per_s, bytes_per_s=bytes_per_s)


def test_long_kernels_follow_what_bounds_them_and_short_ones_the_launch() -> None:
    transfer = Transfer(origin=SLOW, target=FAST, log_half_width=0.1)
    # 0.5 GB moved by a GeLU, 137 GFLOP by a product; then next to nothing.
    assert transfer.factors(GELU, [(8, 4096, 4096)], 2)[0] == pytest.approx(0.5, rel=0.02)
    assert transfer.factors(GEMM, [(4096, 4096, 4096)], 2)[0] == pytest.approx(0.25, rel=0.02)
    assert transfer.factors(GELU, [(1, 1, 64)], 2)[0] == pytest.approx(1, rel=0.01)
    # A product with one row waits for its weights.
    assert transfer.factors(GEMM, [(1, 16384, 16384)], 2)[0] == pytest.approx(0.5, rel=0.02)


def test_a_roofline_by_hand() -> None:
    moved_us = 2 * 2 * (2 * 3 * 4) / 1e12 * 1e6
    found = SLOW.roofline_us(OPERATORS["gelu"], Direction.FORWARD, [(2, 3, 4)], 2)
    assert found.tolist() == pytest.approx([LAUNCH_FLOOR_US + moved_us])


@given(
    a=st.tuples(RATE, RATE), b=st.tuples(RATE, RATE), c=st.tuples(RATE, RATE), size=st.integers(1, 1 << 16)
)
def test_there_and_back_is_nothing_and_ways_add_up(
    a: tuple[float, float], b: tuple[float, float], c: tuple[float, float], size: int
) -> None:
    one, two, three = rates(*a), rates(*b), rates(*c)

    def factor(origin: Rates, target: Rates) -> float:
        found = Transfer(origin=origin, target=target, log_half_width=0).factors(GEMM, [(size, 512, size)], 2)
        return float(found[0])

    assert factor(one, one) == 1
    assert factor(one, two) * factor(two, one) == pytest.approx(1)
    assert factor(one, two) * factor(two, three) == pytest.approx(factor(one, three))
    on = Transfer(origin=one, target=two, log_half_width=0.1).to(three, 0.3)
    assert on.factors(GEMM, [(size, 512, size)], 2)[0] == pytest.approx(factor(one, three))
    assert on.log_half_width == 0.3


def test_a_correction_by_a_point_holds_at_it_and_less_far_from_it() -> None:
    vector, far = (8, 512, 512), (8, 65536, 65536)
    element_us = float(SLOW.roofline_us(OPERATORS["gelu"], Direction.FORWARD, [vector], 2)[0])
    knots = positions(np.array([2 * element_us]), np.array([element_us]), [vector])
    likeness = Likeness(noise=0.01)
    weight = math.log(3) / float(likeness.covariance(centred(knots, knots), centred(knots, knots))[0, 0])
    correction = Correction(knots=(tuple(knots[0].tolist()),), weights=(weight,), likeness=likeness)
    transfer = Transfer(origin=SLOW, target=SLOW, log_half_width=0, correction=correction)
    assert transfer.carried_us(GELU, [vector], np.array([2 * element_us]), 2) == pytest.approx(6 * element_us)
    (there_us,) = transfer.carried_us(GELU, [far], np.array([1e6]), 2)
    assert 1e6 < there_us < 3e6
    assert Transfer.from_dict(transfer.to_dict()) == transfer


def test_a_bundle_keeps_it_and_answers_by_it(make_bundle: Callable[..., Path]) -> None:
    """A GeLU of 10 µs (5 to 20); the other device takes half, and its interval is wider by independent errors."""
    path = make_bundle(dtype="float16")
    bundle = read_bundle(path)
    transfer = Transfer(origin=SLOW, target=FAST, log_half_width=math.log(2))
    entries = [
        replace(entry, transfer=transfer, data="A of B") if entry.key == GELU else entry
        for entry in bundle.manifest.regressors
    ]
    carried = path.with_name("carried.kcast")
    write_bundle(carried, replace(bundle.manifest, regressors=tuple(entries)), bundle.files)
    read = read_bundle(carried)
    assert (read.entries[GELU].transfer, read.entries[GELU].data) == (transfer, "A of B")
    vector = (8, 4096, 4096)
    factor = float(transfer.factors(GELU, [vector], 4)[0])
    time_us, low_us, high_us = Predictor(read).answers_of(*GELU, [vector])[vector]
    assert time_us == pytest.approx(10 * factor)
    assert high_us / time_us == pytest.approx(2 ** math.sqrt(2))
    assert time_us / low_us == pytest.approx(2 ** math.sqrt(2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log_half_width": -1.0}, "log_half_width is -1.0, expected 0 to 20"),
        ({"target": ("made up", 0.0, 1.0)}, "target.flops_per_s is 0.0, expected a number above 0"),
        ({"origin": ("made up", 1.0, math.inf)}, "origin.bytes_per_s is inf, expected a number above 0"),
    ],
)
def test_wrong_values_are_one_line(changes: dict[str, Any], message: str) -> None:
    values = Transfer(origin=SLOW, target=FAST, log_half_width=0).to_dict()
    for name, value in changes.items():
        if isinstance(value, tuple):
            value = dict(zip(("device", "flops_per_s", "bytes_per_s"), value, strict=True))
        values[name] = value
    with pytest.raises(DataError) as caught:
        Transfer.from_dict(values)
    assert str(caught.value) == message


def test_one_chip_with_other_memory_is_off_by_what_memory_can_change() -> None:
    larger, smaller = Rates.of(device("a100-sxm"), "float16"), Rates.of(device("a100-sxm-40gb"), "float16")
    assert larger is not None
    assert smaller is not None
    transfer = Transfer(origin=larger, target=smaller, log_half_width=2.0)
    ratio = math.log(larger.bytes_per_s / smaller.bytes_per_s)
    # 1 GiB streamed: not slower than by the ratio, which is what carried it, and not faster than before.
    below, above = transfer.log_half_widths(GELU, [(8, 8192, 4096)], 2)
    assert below[0] == pytest.approx(ratio, rel=0.02)
    assert above[0] == pytest.approx(0, abs=1e-9)
    # 2 · 8192³ FLOPs take 3524 µs, 3 · 8192² elements 197 µs against 259 µs: without overlap 1.7 % more.
    below, above = transfer.log_half_widths(GEMM, [(8192, 8192, 8192)], 2)
    assert below[0] == pytest.approx(0, abs=1e-9)
    assert above[0] == pytest.approx(math.log((3 + 3524.0 + 259.0) / (3 + 3524.0 + 197.5)), rel=0.02)
    # The measured width is a bound too, and of two chips the only one.
    narrow = Transfer(origin=larger, target=smaller, log_half_width=0.001)
    assert [ends.tolist() for ends in narrow.log_half_widths(GELU, [(8, 8192, 4096)], 2)] == [
        [0.001],
        [pytest.approx(0, abs=1e-9)],
    ]
    other = Rates.of(device("a100-pcie"), "float16")
    assert other is not None
    foreign = Transfer(origin=larger, target=other, log_half_width=2.0)
    assert [ends.tolist() for ends in foreign.log_half_widths(GELU, [(8, 8192, 4096)], 2)] == [[2.0], [2.0]]
