"""Doubtful rows: named next to the errors, or not fitted at all, never in silence."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime import DataError
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Sample
from kernelcast.train.dataset import Row, Table
from kernelcast.train.fit import train_bundle
from kernelcast.train.notes import constant_times, notes_on
from kernelcast.train.scope import Scope

Measure = Callable[..., list[Sample]]
pytestmark = pytest.mark.usefixtures("few_candidates")
LAYOUT = {(2**size, 1, 2): 40.0 + 2**size / 1e3 for size in range(10, 22)}


def test_equal_times_are_no_measurement(make_table: Callable[..., Table]) -> None:
    table = make_table(law=lambda v: 12.5, count=9)
    assert constant_times(table) == "all 9 workloads took exactly 12.5 µs, expected times that differ"
    assert constant_times(make_table(count=9)) == ""
    one = replace(table, workloads=table.workloads[:1], times_us=table.times_us[:1])
    assert constant_times(one) == ""


def test_an_operator_of_equal_times_is_left_out(database: Database, measure: Measure, tmp_path: Path) -> None:
    measure(database, "rope", Direction.FORWARD, times_us={(1, 1, 1, 1, i): 7.0 for i in range(1, 13)})
    with pytest.raises(DataError, match=r"rope [(]forward[)]: all 12 workloads took exactly 7 µs"):
        train_bundle(database, tmp_path / "no.kcast")
    measure(database, "gelu", Direction.FORWARD, 12)
    trained = train_bundle(database, tmp_path / "one.kcast")
    assert [entry.operator for entry in trained.manifest.regressors] == ["gelu"]
    [skipped] = trained.skipped
    assert skipped.operator == "rope"
    assert skipped.text.startswith("all 12 workloads took exactly 7 µs")


def test_contradicting_rows_are_named(database: Database, measure: Measure, tmp_path: Path) -> None:
    samples = measure(database, "gelu", Direction.FORWARD, 12)
    again = {sample.vector: 3 * (sample.quiet_us or 0) for sample in samples[:2]}
    measure(database, "gelu", Direction.FORWARD, times_us=again)
    [note] = train_bundle(database, tmp_path / "one.kcast").notes
    assert (note.operator, note.direction) == ("gelu", Direction.FORWARD)
    assert note.text.startswith("2 workloads were measured several times with times up to 3× apart (worst: [")
    assert note.text.endswith("]); the median counts")


def test_one_layout_only_is_said(database: Database, measure: Measure, tmp_path: Path) -> None:
    measure(database, "all_reduce", Direction.ONCE, times_us=LAYOUT)
    trained = train_bundle(database, tmp_path / "one.kcast")
    [note] = trained.notes
    assert note.text == "measured on 1 × 2 processes only: times of other layouts are extrapolated"
    assert [entry.layouts for entry in trained.manifest.regressors] == [((1, 2),)]


def test_several_layouts_need_no_note(make_table: Callable[..., Table]) -> None:
    rows: list[Row] = []
    assert notes_on(rows, [make_table("all_reduce", Direction.ONCE, 20)]) == ()
    assert notes_on(rows, [make_table("gelu", count=20)]) == ()


def test_differences_train_and_are_counted(database: Database, measure: Measure, tmp_path: Path) -> None:
    samples = measure(database, "gelu", Direction.FORWARD, 12)
    database.add_samples(
        [replace(sample, flags=(("difference", f"full less {n}"),)) for n, sample in enumerate(samples)]
    )
    trained = train_bundle(database, tmp_path / "one.kcast")
    assert not trained.skipped
    [note] = trained.notes
    # The first that is read is the example.
    scope = Scope.choose(database, dtype="", hardware="", software="", fabric="")
    first = next(flag for sample in scope.samples for flag in sample.flags)
    assert note.text == f"12 of 24 samples are flagged difference ({first[1]})"
