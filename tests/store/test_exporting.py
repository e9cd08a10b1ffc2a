"""Exports: a subset that stands on its own, keeps its ids and merges back; as a database and as Parquet."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.operators import Direction
from kernelcast.store import (
    Database,
    IngestedTrace,
    MeasuredStep,
    Prediction,
    Run,
    Sample,
    check_database,
    merge_databases,
)
from kernelcast.store.export import Subset, export_database

SampleMaker = Callable[..., Sample]


@pytest.fixture
def filled(
    database: Database,
    run: Run,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
    make_sample: SampleMaker,
    step: MeasuredStep,
    add_trace: Callable[..., IngestedTrace],
) -> Path:
    """Two kinds of hardware, three operators, two months, a step with a prediction and a trace on the first."""
    add_trace()
    other = replace(compute, threads=2)
    second = replace(run, compute_id=other.digest, fabric_id=None, site="Second site", note="second note")
    database.add_run(second, other, None, software)
    database.add_samples([make_sample(rows=1), make_sample(rows=2, operator="swiglu")])
    late = make_sample(rows=3, run_id=second.id, direction=Direction.BACKWARD)
    undated = replace(make_sample(rows=4), measured_at=None, flags=(("unstable", "spread 31 %"),))
    database.add_samples([replace(late, measured_at="2026-02-15T12:00:00Z"), undated])
    database.add_samples([Sample.without_time(
        run_id=run.id, operator="gelu", direction=Direction.FORWARD, dtype="float32", vector=(1, 1, 1),
        status="failed", reason="out of memory", measured_at="2026-01-31T08:16:00Z",
    )])  # fmt: skip
    prediction = Prediction(
        step_id=database.add(step),
        bundle_digest="b",
        timeline="closed form",
        statistic="time_us",
        predicted_s=0.61,
    )
    database.add(prediction)
    database.close()
    return database.path


def exported(source: Path, subset: Subset) -> dict[str, int]:
    target = source.with_name("part.db")
    target.unlink(missing_ok=True)
    export_database(source, target, subset)
    assert check_database(target) == []
    with Database.open(source) as database:
        digest = database.content_digest()
    assert merge_databases([target], source).content_digest == digest  # nothing in it is new
    with Database.open(target) as database:
        return {table: count for table, count in database.row_counts().items() if count}


def test_everything(filled: Path) -> None:
    counts = exported(filled, Subset())
    assert counts == {
        "hardware": 2, "fabric": 1, "software": 1, "source": 1, "run": 2, "run_note": 2, "sample": 5, "trace": 1,
        "unrecognised_kernel": 1, "step": 1, "prediction": 1, "sample_flag": 1, "repetition": 40, "kernel": 80,
        "timeline": 1, "traced_step": 2, "traced_event": 3,
    }  # fmt: skip


def test_by_operator(filled: Path) -> None:
    counts = exported(filled, Subset(operators=["swiglu", "gelu"]))
    assert (counts["sample"], counts["run"], counts["hardware"]) == (2, 1, 1)
    assert counts.keys().isdisjoint({"step", "trace", "unrecognised_kernel", "timeline"})


def test_by_hardware(filled: Path, compute: ComputeFingerprint) -> None:
    counts = exported(filled, Subset(hardware=compute.digest[:8]))
    assert (counts["sample"], counts["run"], counts["hardware"], counts["step"]) == (4, 1, 1, 1)
    counts = exported(filled, Subset(hardware=replace(compute, threads=2).digest))
    assert (counts["sample"], counts["run_note"]) == (1, 1)
    assert counts.keys().isdisjoint(
        {"step", "prediction", "fabric", "trace", "unrecognised_kernel", "timeline"}
    )


def test_by_date(filled: Path) -> None:
    assert exported(filled, Subset(since="2026-02-15"))["sample"] == 1
    assert (
        exported(filled, Subset(until="2026-02-15T12:00:00Z"))["sample"] == 3
    )  # what has no date is left out
    assert exported(filled, Subset(since="2026-01-31", until="2026-03-01"))["sample"] == 4


def test_anonymous_drops_sites_and_notes_and_lists_what_stays(filled: Path) -> None:
    target = filled.with_name("shared.db")
    done = export_database(filled, target, Subset(anonymous=True))
    content = target.read_bytes()
    for text in (b"Example site", b"first try", b"Second site", b"second note"):
        assert text not in content
        assert text in filled.read_bytes()
    assert done.texts == {
        "model names": ["small-gpt"],
        "failure reasons": ["out of memory"],
        "annotations and modules": ["forward"],
        "process groups": ['[{"name":"0","ranks":[0,1],"size":2}]'],
    }
    assert check_database(target) == []


def test_what_selects_nothing_is_said(filled: Path) -> None:
    target = filled.with_name("part.db")
    with pytest.raises(UsageError, match="operator 'gellu' is unknown, nearest is gelu"):
        export_database(filled, target, Subset(operators=["gellu"]))
    with pytest.raises(DataError, match="nothing in it matches"):
        export_database(filled, target, Subset(hardware="0000"))
    with pytest.raises(UsageError, match="expected the start of a hardware id"):
        Subset(hardware="Example GPU")
    with pytest.raises(UsageError, match="since: found 'yesterday"):
        Subset(since="yesterday")
    export_database(filled, target, Subset())
    with pytest.raises(DataError, match="exists already"):
        export_database(filled, target, Subset())
    assert not [path.name for path in filled.parent.iterdir() if path.name.startswith(".")]


class TestParquet:
    """The extra `parquet`."""

    def test_samples_and_kernels_are_partitioned(self, filled: Path) -> None:
        from pyarrow import dataset

        from kernelcast.store.parquet import export_parquet

        folder = filled.with_name("out")
        rows = export_parquet(filled, folder, Subset())
        assert (rows["sample"], rows["kernel"], rows["step"], rows["run_note"]) == (5, 80, 1, 2)
        assert sorted(path.parent.name for path in folder.glob("sample/*/*/part-0.parquet")) == [
            "operator=gelu", "operator=gemm", "operator=gemm", "operator=swiglu",
        ]  # fmt: skip
        kernels = dataset.dataset(folder / "kernel", partitioning="hive").to_table()
        assert kernels.num_rows == 80
        assert set(kernels["name"].to_pylist()) == {"gemm_0", "gemm_1"}
        assert sum(kernels["duration_us"].to_pylist()) == 40 * (0.5 + 1.5)
        assert not [path.name for path in filled.parent.iterdir() if path.name.startswith(".")]

    def test_a_subset(self, filled: Path) -> None:
        from kernelcast.store.parquet import export_parquet

        rows = export_parquet(filled, filled.with_name("out"), Subset(operators=["gelu"], anonymous=True))
        assert (rows["sample"], rows["kernel"], rows["run"], rows["run_note"]) == (1, 0, 1, 0)

    def test_an_operator_s_name_cannot_lead_out_of_the_folder(self, filled: Path) -> None:
        import sqlite3

        from kernelcast.store.parquet import export_parquet

        with sqlite3.connect(filled) as connection:
            connection.execute("UPDATE operator SET name = '../../../x' WHERE name = 'gelu'")
            connection.execute("UPDATE sample SET operator = '../../../x' WHERE operator = 'gelu'")
        connection.close()
        before = set(filled.parent.iterdir())
        export_parquet(filled, filled.with_name("out"), Subset())
        assert {path.name for path in set(filled.parent.iterdir()) - before} <= {
            "out",
            "bench.db-shm",
            "bench.db-wal",
        }
        assert (filled.with_name("out") / "sample").is_dir()

    def test_an_existing_folder_stays(self, filled: Path) -> None:
        from kernelcast.store.parquet import export_parquet

        with pytest.raises(DataError, match="exists already"):
            export_parquet(filled, filled.parent, Subset())
        with pytest.raises(DataError, match="its folder does not exist"):
            export_parquet(filled, filled.parent / "none" / "out", Subset())
