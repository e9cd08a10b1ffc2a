"""Bursts and sustained load in training: which times are fitted, and how far both are apart."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime import read_bundle
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Sample
from kernelcast.train.dataset import Row, tables
from kernelcast.train.fit import _TrainingData, train_bundle
from kernelcast.train.loads import by_load
from kernelcast.train.notes import conflict_notes
from kernelcast.train.regressor import Candidate
from kernelcast.train.scope import Scope

F = Direction.FORWARD
Measure = Callable[..., list[Sample]]


def row(rows: int, time_us: float, load: Load = Load.BURST) -> Row:
    return Row(operator="gelu", direction=F, vector=(1, rows, 64), time_us=time_us, load=load)


def both(burst: Sequence[float], sustained: Sequence[float], stated: Load = Load.BURST) -> list[Row]:
    """Workloads with these times: [1, 8, 64], [1, 9, 64], … of either load."""
    return [
        *(row(8 + number, time_us, stated) for number, time_us in enumerate(burst)),
        *(row(8 + number, time_us, Load.SUSTAINED) for number, time_us in enumerate(sustained)),
    ]


def test_the_ratio_of_both_is_the_median_over_common_workloads() -> None:
    found = by_load(tables(both([10.0] * 10, [9.0, 10.0, *[12.0] * 8, 99.0]), statistic="quiet"))
    [table] = found.tables
    assert table.load is Load.SUSTAINED
    assert len(table) == 11
    [ratio] = found.ratios
    assert (ratio.operator, ratio.direction, ratio.workloads) == ("gelu", F, 10)
    # Of 0.9, 1.0 and eight times 1.2; the tenth of ten values from 0.9 to 1.0 is 0.9 of the way.
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((0.99, 1.2, 1.2))
    assert len(found.bursts[table.key]) == 10
    assert found.notes == ()


def test_too_few_sustained_times_leave_bursts_and_are_named() -> None:
    found = by_load(tables(both([10.0, 11.0] * 5, [12.0, 13.0]), statistic="quiet"))
    [table] = found.tables
    assert (table.load, len(table)) == (Load.BURST, 10)
    [note] = found.notes
    assert note.text == (
        "under sustained load 2 distinct workloads, expected 8 or more: times of bursts answer"
    )
    assert found.bursts == {}
    assert found.ratios[0].workloads == 2


def test_what_states_no_load_counts_as_a_burst_and_is_not_called_one() -> None:
    [table] = by_load(tables(both([10.0] * 9, [], Load.NOT_STATED), statistic="quiet")).tables
    assert table.load is Load.NOT_STATED
    mixed = [*both([10.0] * 9, []), row(8, 11.0, Load.NOT_STATED)]
    [table] = tables(mixed, statistic="quiet")
    assert table.load is Load.NOT_STATED
    assert by_load([table]).ratios == ()


def test_loads_do_not_contradict_each_other() -> None:
    assert list(conflict_notes(both([10.0], [30.0]))) == []
    assert len(list(conflict_notes([row(8, 10.0), row(8, 30.0)]))) == 1


def test_a_bundle_answers_with_sustained_times_and_says_so(
    database: Database, measure: Measure, tmp_path: Path, few_candidates: Sequence[Candidate]
) -> None:
    def also_sustained(operator: str, count: int, factor: float) -> None:
        found = measure(database, operator, count=count, seed=3)
        database.add_samples(
            replace(one, load=Load.SUSTAINED, quiet_us=factor * (one.quiet_us or 0)) for one in found
        )

    also_sustained("gelu", 12, 1.5)
    also_sustained("residual_add", 12, 1.0)
    measure(database, "layer_norm", count=12)
    scope = Scope.choose(database, dtype="", hardware="", software="", fabric="")
    data = _TrainingData.of(scope, "quiet", None, where="here")
    # Sustained tables share rows with bursts, which take part in the training.
    bases = {task.table.operator: task.base and (task.base.load, len(task.base)) for task in data.tasks(7)}
    assert bases == {"gelu": (Load.NOT_STATED, 12), "residual_add": (Load.NOT_STATED, 12), "layer_norm": None}
    assert len(data.used_samples()) == 5 * 12
    trained = train_bundle(database, tmp_path / "here.kcast")
    assert {one.operator: one.median for one in trained.load_ratios} == pytest.approx(
        {"gelu": 1.5, "residual_add": 1.0}
    )
    bundle = read_bundle(tmp_path / "here.kcast")
    assert {entry.operator: entry.load for entry in bundle.manifest.regressors} == {
        "gelu": Load.SUSTAINED,
        "residual_add": Load.SUSTAINED,
        "layer_norm": Load.NOT_STATED,
    }
    assert bundle.manifest.loads == "2 sustained, 1 not stated"
    # The burst of a workload in the middle takes a third less than what the bundle answers.
    rows = [one for one in database.read_samples(operator="gelu", load=Load.BURST) if one.vector[1] > 20]
    predictor = Predictor(bundle)
    answers = predictor.answers("gelu", F, [one.vector for one in rows])
    ratios = sorted(answer[0] / (one.quiet_us or 0) for answer, one in zip(answers, rows, strict=True))
    assert ratios[len(ratios) // 2] == pytest.approx(1.5, rel=0.1)
