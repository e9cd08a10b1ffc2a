"""`train_bundle` with an earlier bundle: regressors of unchanged rows are taken over, others are fitted again."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import kernelcast.runtime.operators
from kernelcast.runtime import read_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Sample
from kernelcast.train import fit_table
from kernelcast.train.fit import train_bundle

Measure = Callable[..., list[Sample]]
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD

pytestmark = pytest.mark.usefixtures("few_candidates")


def test_what_has_not_changed_is_not_fitted_again(
    database: Database, measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(database, "gelu", FORWARD, 10)
    measure(database, "embedding", BACKWARD, 10)
    first = train_bundle(database, tmp_path / "first.kcast")
    assert [s.table.operator for s in first.selections] == ["embedding", "gelu"]
    earlier = read_bundle(tmp_path / "first.kcast")
    measure(database, "gelu", FORWARD, times_us={(7, 77, 777): 40.0})
    measure(database, "rope", FORWARD, 10)
    again = train_bundle(database, tmp_path / "again.kcast", earlier=earlier)
    assert [s.table.operator for s in again.selections] == ["gelu", "rope"]
    full = train_bundle(database, tmp_path / "full.kcast")
    assert len(full.selections) == 3
    assert (tmp_path / "again.kcast").read_bytes() == (tmp_path / "full.kcast").read_bytes()
    # Nothing new, and over itself.
    over = train_bundle(database, tmp_path / "full.kcast", earlier=read_bundle(tmp_path / "full.kcast"))
    assert (over.selections, over.digest) == ((), full.digest)
    # Another seed, statistic or code: everything is fitted again.
    for options in ({"seed": 21}, {"statistic": "middle_five"}):
        other = train_bundle(database, tmp_path / "other.kcast", earlier=earlier, **options)  # type: ignore[arg-type]
        assert len(other.selections) == 3
    monkeypatch.setattr("kernelcast.train.fit_table._code_digest", lambda: "0" * 32)
    assert len(train_bundle(database, tmp_path / "other.kcast", earlier=earlier).selections) == 3


def test_rows_of_another_role_change_the_regressor(
    database: Database, measure: Measure, tmp_path: Path
) -> None:
    samples = measure(database, "gemm", FORWARD, 10, role="mlp_up")
    measure(database, "gelu", FORWARD, 10)
    train_bundle(database, tmp_path / "first.kcast")
    # The same workload and time in another role: the errors by role are others.
    again = {samples[0].vector: samples[0].quiet_us or 0.0}
    measure(database, "gemm", FORWARD, times_us=again, role="mlp_down")
    earlier = read_bundle(tmp_path / "first.kcast")
    trained = train_bundle(database, tmp_path / "again.kcast", earlier=earlier)
    assert [s.table.operator for s in trained.selections] == ["gemm"]
    assert train_bundle(database, tmp_path / "full.kcast").digest == trained.digest


CODE = sorted(Path(kernelcast.runtime.operators.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("changed", CODE, ids=lambda path: path.name)
def test_any_file_of_the_operator_table_changes_the_recipe(
    changed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, read_bytes = fit_table._code_digest.__wrapped__(), Path.read_bytes

    def edited(path: Path) -> bytes:
        return read_bytes(path) + (b"# edited" if path.name == changed.name else b"")

    monkeypatch.setattr(Path, "read_bytes", edited)
    assert fit_table._code_digest.__wrapped__() != before


def test_another_fabric_refits_collectives_only(
    database: Database,
    measure: Measure,
    tmp_path: Path,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
) -> None:
    faster = replace(fabric, links=("NVLink",))
    measure(database, "gelu", FORWARD, 10)
    measure(database, "all_reduce", Direction.ONCE, 10)
    measure(
        database,
        "all_reduce",
        Direction.ONCE,
        10,
        seed=1,
        fabric=faster,
        software=replace(software, nccl="2.27"),
    )
    first = train_bundle(database, tmp_path / "first.kcast", fabric=fabric.digest)
    earlier = read_bundle(tmp_path / "first.kcast")
    other = train_bundle(database, tmp_path / "other.kcast", fabric=faster.digest, earlier=earlier)
    assert [s.table.operator for s in first.selections] == ["all_reduce", "gelu"]
    assert [s.table.operator for s in other.selections] == ["all_reduce"]
    full = train_bundle(database, tmp_path / "full.kcast", fabric=faster.digest)
    assert other.digest == full.digest


def test_only_what_the_database_holds_is_taken_over(
    database: Database, measure: Measure, tmp_path: Path
) -> None:
    measure(database, "gelu", FORWARD, 10)
    with Database.open(tmp_path / "more.db", create=True) as more:
        measure(more, "gelu", FORWARD, 10)
        measure(more, "rope", FORWARD, 10)
        train_bundle(more, tmp_path / "more.kcast")
    trained = train_bundle(database, tmp_path / "a.kcast", earlier=read_bundle(tmp_path / "more.kcast"))
    assert [entry.operator for entry in trained.manifest.regressors] == ["gelu"]
    assert trained.selections == ()


def test_another_machine_takes_nothing_over(
    database: Database, measure: Measure, tmp_path: Path, compute: ComputeFingerprint
) -> None:
    measure(database, "gelu", FORWARD, 10)
    train_bundle(database, tmp_path / "a.kcast")
    with Database.open(tmp_path / "other.db", create=True) as other:
        measure(other, "gelu", FORWARD, 10, compute=replace(compute, cores=4))
        trained = train_bundle(other, tmp_path / "b.kcast", earlier=read_bundle(tmp_path / "a.kcast"))
    assert len(trained.selections) == 1
