"""Which regressor answers where a prior has one too: the device's own, the prior's corrected, or the prior's alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernelcast.runtime import read_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.operators import Direction, Key
from kernelcast.train.dataset import Table
from kernelcast.train.prior import MOST_POINTS, Prior
from kernelcast.train.prior_choice import choose, corrections

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
INPUT, WEIGHT = Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT
GELU: Key = ("gelu", FORWARD)
WHOLE, FIRST, SECOND = (("gemm", one) for one in (BACKWARD, INPUT, WEIGHT))
CPU = ComputeFingerprint(kind="cpu", device_name="Here", cores=2, threads=1)


@pytest.fixture
def prior_of(make_bundle: Callable[..., Path]) -> Callable[..., Prior]:
    """A prior with regressors of these keys and of an all-reduce."""

    def make(*keys: Key) -> Prior:
        bundle = read_bundle(make_bundle({WHOLE: 20.0}, compute=[CPU]))
        entries = {key: one for key, one in bundle.entries.items() if key in keys or key[0] == "all_reduce"}
        return Prior.of(replace(bundle, entries=entries), replace(CPU, device_name="There"), "float32")

    return make


@pytest.fixture
def entry(regressor: Callable[..., RegressorEntry]) -> Callable[..., RegressorEntry]:
    def make(key: Key, error: float, *, processes: int = 1) -> RegressorEntry:
        found = regressor(key, b"model")
        level = "" if processes == 1 else f".{processes}-processes"
        file = found.file.replace(".onnx", f"{level}.onnx")
        return replace(found, file=file, validation_error=error, processes_per_node=processes)

    return make


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        ({GELU: 0.10}, {GELU: 0.11}, ["own gelu forward"]),
        ({GELU: 0.10}, {GELU: 0.10}, ["corrected gelu forward"]),
        ({}, {GELU: 0.9}, ["corrected gelu forward"]),
        # A sum is as good as its parts are on average; one part alone is no rival.
        ({FIRST: 0.1, SECOND: 0.3}, {WHOLE: 0.19}, ["corrected gemm backward"]),
        ({FIRST: 0.1, SECOND: 0.3}, {WHOLE: 0.21}, ["own gemm input_gradient", "own gemm weight_gradient"]),
        ({FIRST: 0.1}, {WHOLE: 0.9}, ["corrected gemm backward"]),
    ],
)
def test_the_smaller_error_answers(
    prior_of: Callable[..., Prior],
    entry: Callable[..., RegressorEntry],
    own: Mapping[Key, float],
    others: Mapping[Key, float],
    expected: Sequence[str],
) -> None:
    beside = entry(GELU, 0.9, processes=2)
    corrected = [replace(entry(*one), form="corrected") for one in others.items()]
    mine = [replace(entry(*one), form="own") for one in own.items()]
    found = choose(prior_of(*others), [*mine, beside], corrected, statistic="quiet")
    assert beside in found  # of another level, which no prior answers
    assert [f"{one.form} {one.operator} {one.direction}" for one in found if one is not beside] == expected


@pytest.mark.parametrize(
    ("answered", "carried"),
    [([], [WHOLE]), ([FIRST], [WHOLE]), ([FIRST, SECOND], []), ([WHOLE], [])],
)
def test_what_was_not_measured_is_carried_over(
    prior_of: Callable[..., Prior],
    entry: Callable[..., RegressorEntry],
    answered: Sequence[Key],
    carried: Sequence[Key],
) -> None:
    own = [entry(key, 0.1) for key in answered]
    found = choose(prior_of(WHOLE), own, [], statistic="middle_five")
    assert list(found[: len(own)]) == own
    assert [one.key for one in found[len(own) :]] == carried
    for one in found[len(own) :]:
        assert (one.statistic, one.role_errors) == ("middle_five", {})
        assert one.transfer is not None


def table(key: Key, rows: int, *, processes: int = 1, load: Load = Load.BURST, first: int = 1) -> Table:
    sizes = np.arange(first, first + rows, dtype=np.float64)
    times_us = 10.0 + sizes
    return Table(
        operator=key[0], direction=key[1], workloads=np.column_stack([sizes, sizes, np.full(rows, 64.0)]),
        times_us=times_us, role_times_us={"qkv": times_us, f"only {key[1].value}": times_us},
        processes_per_node=processes, load=load,
    )  # fmt: skip


def test_small_tables_of_what_the_prior_has_correct_it(prior_of: Callable[..., Prior]) -> None:
    found = corrections(
        prior_of(GELU),
        [table(GELU, MOST_POINTS), table(("layer_norm", FORWARD), 5), table(GELU, 3, processes=2)],
        statistic="quiet",
    )
    assert [
        (one.key, one.transfer and one.transfer.correction and one.transfer.correction.points)
        for one in found
    ] == [(GELU, MOST_POINTS)]
    assert corrections(prior_of(GELU), [table(GELU, MOST_POINTS + 1)], statistic="quiet") == []


def test_parts_that_were_measured_alike_correct_their_sum(prior_of: Callable[..., Prior]) -> None:
    def of(*tables: Table, keys: Sequence[Key] = (WHOLE,)) -> list[tuple[Key, Load, int | None, set[str]]]:
        return [
            (one.key, one.load, one.transfer and one.transfer.correction and one.transfer.correction.points,
             set(one.role_errors))
            for one in corrections(prior_of(*keys), tables, statistic="quiet")
        ]  # fmt: skip

    first, second = table(FIRST, 5), table(SECOND, 5, first=3)
    assert of(first, second) == [(WHOLE, Load.BURST, 3, {"qkv"})]  # three workloads are common
    assert of(first, replace(second, load=Load.SUSTAINED)) == [(WHOLE, Load.NOT_STATED, 3, {"qkv"})]
    assert of(first) == of(first, table(SECOND, 5, first=9)) == []
    # Measured as a whole, or answered in parts, it needs no sum.
    assert [key for key, *_ in of(first, second, table(WHOLE, 4))] == [WHOLE]
    assert [key for key, *_ in of(first, second, keys=(WHOLE, FIRST))] == [FIRST]
    prior = prior_of(WHOLE)
    [entry] = corrections(prior, [first, second], statistic="quiet")
    [whole] = corrections(
        prior,
        [replace(table(WHOLE, 3, first=3), times_us=2 * (10.0 + np.arange(3.0, 6.0)), role_times_us={})],
        statistic="quiet",
    )
    assert entry.transfer == whole.transfer
