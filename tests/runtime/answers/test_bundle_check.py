"""`check_bundle`: the checks of a sound bundle, and the findings in one that is not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import DataError
from kernelcast.runtime.answers.bundle_check import check_bundle
from kernelcast.runtime.bundle.file import write_bundle
from kernelcast.runtime.operators import OPERATORS, Direction
from tests.runtime.bundle.hostile_graphs import HOSTILE

Make = Callable[..., Any]
GELU = ("gelu", Direction.FORWARD)
REDUCE = ("all_reduce", Direction.ONCE)


def test_every_regressor_is_asked_at_its_corners(make_bundle: Make) -> None:
    path = make_bundle(optional_us=1.1e-3)
    checked = check_bundle(path)
    sizes = [len(op.features) for op in OPERATORS.values() for _ in op.directions]
    assert checked.bundle.path == path
    assert checked.models == len(sizes)
    assert checked.corners == sum(2**size for size in sizes)


def test_a_collective_is_asked_in_each_of_its_layouts(
    regressor: Make, manifest: Make, linear_model: Make, tmp_path: Path
) -> None:
    path = tmp_path / "a.kcast"
    model = linear_model((1, 0, 0), 5)
    entry = replace(regressor(REDUCE, model, largest=8), layouts=((1, 8), (2, 4), (8, 8)))
    write_bundle(path, manifest([entry]), {entry.file: model})
    assert check_bundle(path).corners == 8 + 2  # (1, 8) and (8, 8) are corners already


@pytest.mark.parametrize(
    ("weights", "constant", "message"),
    [
        ((-1, 0, 0), 1e3, r"gelu \(forward\) answers -1e\+12 \(.*\) µs for workload \[1000000000000"),
        ((1e38, 0, 0), 1, r"gelu \(forward\) answers 1e\+38 \(.*\) µs for workload \[1\.0"),
        (
            (0, 0, 0),
            1e-38,
            r"gelu \(forward\) answers 1e-38 .*, expected a positive time within its interval",
        ),
        (
            (0, 0, 0),
            9.9e-4,
            r"gelu \(forward\) answers 0\.00099 µs for workload \[1\.0, .*\], expected at least 1 ns$",
        ),
        ((0, 0, 0), 3.2e15, r"gelu \(forward\) answers 3\.2e\+15 .*, at most 100 years$"),
        ((1, 0, 0), -1, r"gelu \(forward\) answers 0 \(0 to 0\) µs for workload \[1\.0, 1\.0, 1\.0\]"),
    ],
)
def test_a_corner_without_an_answer_is_named(
    make_bundle: Make, linear_model: Make, weights: tuple[float, ...], constant: float, message: str
) -> None:
    path = make_bundle({GELU: linear_model(weights, constant)}, optional_us=1.1e-3)
    with pytest.raises(DataError, match=message):
        check_bundle(path)


def test_a_model_that_does_not_load_is_named(make_bundle: Make) -> None:
    path = make_bundle({GELU: b"only bytes, with the right digest"})
    with pytest.raises(DataError, match=r"the model of gelu \(forward\) is refused: the model has field 13"):
        check_bundle(path)


def test_the_shortest_and_the_longest_time_are_sound(make_bundle: Make, linear_model: Make) -> None:
    for time_us in (1.1e-3, 3.1e15):
        assert check_bundle(make_bundle({GELU: linear_model((0, 0, 0), time_us)}, optional_us=1.1e-3)).models


@pytest.mark.parametrize("name", ["deep tree", "loop", "random", "NaN threshold"])
def test_hostile_graphs_do_not_reach_onnx_runtime(make_bundle: Make, name: str) -> None:
    """They crash it, hang it, or answer something else each time."""
    make, message = HOSTILE[name]
    with pytest.raises(DataError, match=rf"the model of gelu \(forward\) is refused: .*{message}"):
        check_bundle(make_bundle({GELU: make()}))
