"""Merged rows of a stranger who lies: measured times and regressors do not move, and notes say whose rows differ."""

import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime import UsageError, read_bundle
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Sample, merge_databases
from kernelcast.store.merges import revert_merge
from kernelcast.train.dataset import Row, Table, tables
from kernelcast.train.fit import train_bundle
from kernelcast.train.scope import OWN, Scope
from kernelcast.train.screening import screen

Measure = Callable[..., list[Sample]]
pytestmark = pytest.mark.usefixtures("few_candidates")
_GENERATOR = random.Random(1)
LIES: dict[str, Callable[[float], float]] = {
    "halved": lambda us: us / 2,
    "a third": lambda us: us / 3,
    "doubled": lambda us: 2 * us,
    "jittered": lambda us: us * _GENERATOR.uniform(0.6, 1.6),
}


@pytest.fixture
def own(database: Database, measure: Measure) -> tuple[Path, list[Sample]]:
    samples = measure(database, "gelu", Direction.FORWARD, 20)
    database.close()
    return database.path, samples


def lied(
    own: Path, samples: list[Sample], measure: Measure, lie: Callable[[float], float], name: str
) -> Path:
    """A copy with every time changed, ids computed again, under the run that was measured here; dates moved."""
    path = Path(shutil.copy(own, own.with_name(f"{name}.db")))
    with Database.open(path) as database:
        times_us = {sample.vector: lie(sample.quiet_us or 0) for sample in samples}
        for one in measure(database, "gelu", Direction.FORWARD, times_us=times_us):
            database.add_samples([replace(one, measured_at="2026-11-01T00:00:00Z")])
        # Descriptions are outside ids, and a merge keeps the earlier ones.
        database.connection.execute("UPDATE hardware SET description = description || '!'")
    return path


def trained_tables(path: Path, only_origin: str = "") -> list[Table]:
    with Database.open(path, read_only=True) as database:
        scope = Scope.choose(database, only_origin=only_origin)
        screened = screen(scope.samples, statistic="quiet", where="", compute=scope.compute[0], fabric=None)
        return tables(screened.rows, statistic="quiet")


def trained(path: Path, bundle: Path) -> tuple[Mapping[str, bytes], list[str]]:
    """The regressors' ONNX bytes, and the notes of the training."""
    with Database.open(path) as database:
        notes = train_bundle(database, bundle).notes
    return read_bundle(bundle).files, [note.text for note in notes]


@pytest.mark.parametrize("name", LIES)
def test_no_merge_moves_a_time_that_was_measured_here(
    own: tuple[Path, list[Sample]], measure: Measure, tmp_path: Path, name: str
) -> None:
    path, samples = own
    [before] = trained_tables(path)
    models, _ = trained(path, tmp_path / "before.kcast")
    theirs = lied(path, samples, measure, LIES[name], "theirs")
    [merge] = merge_databases([theirs], path).merges
    assert merge.into_own_runs == merge.rows
    [after] = trained_tables(path)
    assert (after.times_us == before.times_us).all()
    [alone] = trained_tables(path, OWN)
    assert (alone.times_us == before.times_us).all()
    [other] = trained_tables(path, merge.id[:9])
    assert (abs(other.times_us / before.times_us - 1) > 0.01).any()
    with pytest.raises(UsageError, match=f"no sample of origin 'beef', found {merge.id[:12]}, own"):
        trained_tables(path, "beef")
    models_after, texts = trained(path, tmp_path / "after.kcast")
    assert models_after == models  # to the byte, so that no predicted step moves
    differs, whose = (text for text in texts if merge.id[:12] in text)
    assert "runs differ by more than 10% at " in differs
    assert "of this database" in differs
    assert whose == f"{merge.rows} of {merge.rows + 20} samples are of merge {merge.id[:12]}"
    revert_merge(path, merge.id)
    assert (trained_tables(path)[0].times_us == before.times_us).all()


def test_runs_count_by_their_median_and_merges_by_theirs() -> None:
    def row(time_us: float, run: str, origin: str = "") -> Row:
        return Row(
            operator="gelu",
            direction=Direction.FORWARD,
            vector=(1, 2, 3),
            time_us=time_us,
            run_id=run,
            origin=origin,
        )

    def agreed(*rows: Row) -> float:
        [table] = tables(rows, statistic="quiet")
        return float(table.times_us[0])

    assert agreed(row(10, "a"), row(11, "a"), row(9, "b"), row(5, "c")) == 9
    assert agreed(row(10, "a"), row(5, "a", "x")) == 10
    assert agreed(row(10, "a"), row(20, "a", "x"), row(21, "b", "x"), row(22, "c", "x")) == 10
    assert agreed(row(10, "a"), row(5, "a", "x"), row(5, "b", "y"), row(5, "c", "z")) == 5
    assert agreed(row(8, "a", "x"), row(6, "b", "x"), row(1, "a", "y")) == 4
