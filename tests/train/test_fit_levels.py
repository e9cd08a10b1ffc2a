"""`train_bundle` on operators that were measured with companion processes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcast.runtime import read_bundle
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Sample
from kernelcast.train.fit import train_bundle

Measure = Callable[..., list[Sample]]
FORWARD = Direction.FORWARD
ALONE, TWO = {"processes_per_node": 1}, {"processes_per_node": 2}

pytestmark = pytest.mark.usefixtures("few_candidates")


def beside(
    database: Database, measure: Measure, alone: list[Sample], *, every: int
) -> dict[tuple[int, ...], float]:
    """Measure every `every`-th workload with a companion, a quarter slower; returns such times of all workloads."""
    times_us = {s.vector: 1.25 * (s.quiet_us or 0) for s in alone}
    chosen = dict(list(times_us.items())[::every])
    measure(database, "gelu", FORWARD, times_us=chosen, conditions=TWO)
    return times_us


def test_levels_have_regressors_of_their_own(database: Database, measure: Measure, tmp_path: Path) -> None:
    alone = measure(database, "gelu", FORWARD, 24, conditions=ALONE)
    times_us = beside(database, measure, alone, every=2)
    measure(database, "rope", FORWARD, 10)  # an import: companions are not recorded
    measure(database, "rope", FORWARD, times_us={(1, 64, 8, 8, 64): 9.0}, conditions=TWO)
    trained = train_bundle(database, tmp_path / "here.kcast")
    bundle = read_bundle(tmp_path / "here.kcast")
    assert [(e.operator, e.processes_per_node, e.rows) for e in bundle.manifest.regressors] == [
        ("gelu", 1, 24),
        ("gelu", 2, 12),
        ("rope", 1, 10),
    ]
    (left_out,) = trained.skipped
    assert left_out.text == "1 distinct workloads with 2 processes per node, expected 8 or more"
    predictor = Predictor(bundle)
    vectors = list(times_us)
    usual = predictor.predict_us("gelu", FORWARD, vectors)
    assert usual == pytest.approx([us / 1.25 for us in times_us.values()], rel=0.05)
    assert predictor.at(2).predict_us("gelu", FORWARD, vectors) == pytest.approx(
        list(times_us.values()), rel=0.05
    )


def test_a_level_is_fitted_again_when_the_one_below_has_changed(
    database: Database, measure: Measure, tmp_path: Path
) -> None:
    alone = measure(database, "gelu", FORWARD, 16, conditions=ALONE)
    beside(database, measure, alone, every=1)
    train_bundle(database, tmp_path / "first.kcast")
    earlier = read_bundle(tmp_path / "first.kcast")
    same = train_bundle(database, tmp_path / "again.kcast", earlier=earlier)
    assert (same.selections, same.digest) == ((), earlier.digest)
    measure(database, "gelu", FORWARD, times_us={(7, 77, 777): 40.0}, conditions=TWO)
    one = train_bundle(database, tmp_path / "again.kcast", earlier=earlier)
    assert [s.table.processes_per_node for s in one.selections] == [2]
    measure(database, "gelu", FORWARD, times_us={(7, 77, 778): 40.0}, conditions=ALONE)
    both = train_bundle(database, tmp_path / "again.kcast", earlier=earlier)
    assert [s.table.processes_per_node for s in both.selections] == [1, 2]
    assert both.digest == train_bundle(database, tmp_path / "full.kcast").digest
