"""Published ratios of attention's kernels, and where each runs."""

import math
import tomllib

import pytest

from kernelcast.runtime.catalogue import all_hardware
from kernelcast.runtime.hardware.attention_kernels import (
    all_kernels,
    kernels_on,
    measured_kernels,
    time_ratio,
)
from kernelcast.runtime.hardware.devices import devices
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.request.fields import LAYOUT
from kernelcast.runtime.shipped import ATTENTION_KERNELS

F, B = Direction.FORWARD, Direction.BACKWARD
TABLE = tomllib.loads(ATTENTION_KERNELS.read_text())


def test_a_ratio_is_the_geometric_mean_of_the_published_ones() -> None:
    found = time_ratio("Ampere", F, 128, of="flash-1-triton", over="flash-2")
    assert found is not None
    # 1.3 to 1.5 times as fast: the middle is √1.95, and both ends are as far from it.
    assert found.factor == pytest.approx(math.sqrt(1.3 * 1.5))
    assert found.log_half_width == pytest.approx(math.log(1.5 / 1.3) / 2)
    assert "2307.08691" in found.source


def test_the_spread_is_that_of_the_farthest_and_a_ratio_has_an_inverse() -> None:
    there = time_ratio("Hopper", B, 128, of="flash-2", over="flash-3")
    back = time_ratio("Hopper", B, 128, of="flash-3", over="flash-2")
    assert there is not None
    assert back is not None
    # TFLOP/s of figure 6, 512 to 16k tokens.
    product = (316 / 214) * (424 / 260) * (501 / 291) * (542 / 310) * (559 / 318) * (561 / 322)
    assert there.factor == pytest.approx(product ** (1 / 6))
    assert there.log_half_width == pytest.approx(math.log(there.factor / (316 / 214)))
    assert back.factor == pytest.approx(1 / there.factor)
    assert back.log_half_width == pytest.approx(there.log_half_width)


def test_the_nearest_head_size_answers() -> None:
    def factor(head_size: int) -> float:
        found = time_ratio("Hopper", F, head_size, of="flash-2", over="flash-3")
        assert found is not None
        return found.factor

    assert factor(80) == factor(64)
    assert factor(96) == factor(128) == factor(160)
    assert factor(192) == factor(512) == factor(256)
    assert 1.3 < factor(64) < factor(128) < factor(256) < 2.2


def test_nothing_is_guessed() -> None:
    assert time_ratio("Ampere", F, 128, of="cudnn", over="flash-2") is None
    assert time_ratio("Hopper", F, 128, of="flash-1", over="flash-3") is None
    # Of another architecture there is a ratio.
    assert time_ratio("Blackwell", F, 128, of="flash-2", over="flash-3") is None
    same = time_ratio("Blackwell", F, 128, of="cudnn", over="cudnn")
    assert same is not None
    assert (same.factor, same.log_half_width) == (1.0, 0.0)


def test_every_row_says_where_it_is_from_and_names_what_there_is() -> None:
    architectures = {one.architecture for one in devices().values()}
    rows = [*TABLE["kernel"].values(), *TABLE["measured"].values(), *TABLE["rates"]]
    assert all(row["source"] for row in rows)
    assert (LAYOUT["attention_kernel"].default, *all_kernels()) == tuple(
        LAYOUT["attention_kernel"].kind.values
    )
    for row in TABLE["kernel"].values():
        assert set(row["architectures"]) <= architectures
    assert set(TABLE["measured"]) <= set(all_hardware())
    for row in TABLE["rates"]:
        names = [name for name in row if name in all_kernels()]
        assert len(names) >= 2
        assert len({len(row[name]) for name in names}) == 1
        assert all(row["architecture"] in TABLE["kernel"][name]["architectures"] for name in names)


@pytest.mark.parametrize(
    ("architecture", "names"),
    [
        ("Ampere", ("flash-1", "flash-1-triton", "flash-2", "cudnn")),
        ("Hopper", ("flash-1", "flash-2", "flash-3", "cudnn")),
        ("Blackwell", ("flash-2", "cudnn")),
        ("CDNA 3", ("flash-2",)),
        ("Volta", ()),
    ],
)
def test_where_kernels_run(architecture: str, names: tuple[str, ...]) -> None:
    assert kernels_on(architecture) == names


def test_what_was_measured() -> None:
    h100, b200 = measured_kernels("h100-sxm"), measured_kernels("b200-sxm")
    assert h100 is not None
    assert b200 is not None
    assert h100.by_direction == {F: "flash-3"}
    assert b200.by_direction == {B: "cudnn"}
    assert measured_kernels("a100-pcie") is None
