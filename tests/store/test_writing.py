"""Writing: all or nothing, once only, several at a time."""

import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Kernel, MeasuredStep, Prediction, Repetition, Run, Sample, Status

SampleMaker = Callable[..., Sample]

COMPUTE = ComputeFingerprint(kind="cuda", device_name="Example GPU", memory_gib=80)
SOFTWARE = SoftwareFingerprint(torch="2.13.0", cuda="12.8")
RUN = Run(
    command="import csv",
    compute_id=COMPUTE.digest,
    software_id=SOFTWARE.digest,
)

TIMES_US = st.floats(0.001, 1e8)
KERNELS = st.builds(
    Kernel,
    name=st.text(min_size=1, max_size=30),
    start_us=st.floats(-1.0, 1e8),
    duration_us=st.floats(0, 1e8),
    stream=st.integers(0, 2**31),
)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    vector = tuple(draw(st.lists(st.integers(1, 2**40), min_size=3, max_size=3)))
    direction = draw(st.sampled_from([Direction.FORWARD, Direction.BACKWARD]))
    point: dict[str, Any] = {"run_id": RUN.id, "operator": "gelu", "direction": direction}
    if draw(st.booleans()):
        reason = draw(st.text(min_size=1).filter(lambda text: bool(text.split())))
        return Sample.without_time(**point, dtype="float32", vector=vector, status="failed", reason=reason)
    repetitions = [
        Repetition(index=index, time_us=time_us, start_us=float(index), kernels=tuple(kernels))
        for index, (time_us, kernels) in enumerate(
            draw(st.lists(st.tuples(TIMES_US, st.lists(KERNELS, max_size=4)), min_size=1, max_size=12))
        )
    ]
    return Sample.from_repetitions(
        **point,
        dtype=draw(st.sampled_from(["float32", "bfloat16"])),
        vector=vector,
        repetitions=repetitions,
        reference_us=draw(st.none() | TIMES_US),
    )


def filled(path: Path, *batches: list[Sample]) -> dict[str, Sample]:
    """Contents of a new database after adding the batches."""
    with Database.open(path, create=True) as database:
        database.add_run(RUN, COMPUTE, None, SOFTWARE)
        for batch in batches:
            database.add_samples(batch)
        assert database.query("PRAGMA integrity_check") == [{"integrity_check": "ok"}]
        assert database.query("PRAGMA foreign_key_check") == []
        ids = [row["id"] for row in database.query("SELECT id FROM sample ORDER BY id")]
        return dict(zip(ids, database.samples_in_full(), strict=True))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(samples(), max_size=6), st.lists(samples(), max_size=6))
def test_what_is_read_is_what_was_written_in_any_order_and_any_number_of_times(
    one: list[Sample], other: list[Sample]
) -> None:
    expected = {sample.id: sample for sample in (*one, *other)}
    with tempfile.TemporaryDirectory() as folder:
        forward = filled(Path(folder, "a.db"), one, other)
        backward = filled(Path(folder, "b.db"), other, one, one, other[::-1])
    assert forward == backward == expected
    assert all(sample.id == stored_id for stored_id, sample in forward.items())


def test_adding_again_changes_nothing(
    database: Database,
    make_sample: SampleMaker,
    run: Run,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
) -> None:
    batch = [make_sample(rows=rows) for rows in (64, 128)]
    assert database.add_samples(batch) == 2
    before = list(database.connection.iterdump())
    assert database.add_samples(iter(batch)) == 0
    assert database.add_run(run, compute, fabric, software) == run.id
    assert list(database.connection.iterdump()) == before
    assert database.add_samples([*batch, make_sample(rows=256)]) == 1
    assert set(before) < set(database.connection.iterdump())


def test_measuring_a_point_again_keeps_both(database: Database, make_sample: SampleMaker) -> None:
    assert database.add_samples([make_sample(time_us=10.0), make_sample(time_us=11.0)]) == 2
    assert {row.time_us for row in database.read_samples()} == {14.0, 15.0}


def test_a_run_comes_back_with_its_source_and_note(database: Database, run: Run) -> None:
    assert database.run_list() == [run]


def test_a_run_with_other_fingerprints_is_refused(
    database: Database,
    run: Run,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
) -> None:
    other = replace(compute, cores=64)
    with pytest.raises(UsageError, match="compute_id"):
        database.add_run(run, other, fabric, software)
    with pytest.raises(UsageError, match="fabric_id"):
        database.add_run(run, compute, None, software)


def test_a_run_without_a_fabric_leaves_it_out(
    path: Path,
    run: Run,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
) -> None:
    with Database.open(path, create=True) as database:
        database.add_run(replace(run, fabric_id=None), compute, fabric, software)
        assert database.fabric_list() == []
        assert database.run_list()[0].fabric_id is None


def test_samples_of_an_unknown_run_are_refused_whole(database: Database, make_sample: SampleMaker) -> None:
    with pytest.raises(DataError, match="not in the database"):
        database.add_samples([make_sample(), make_sample(run_id="f" * 32)])
    assert database.read_samples() == []


@pytest.mark.parametrize("name", ["lone surrogate \ud800", "x"])
def test_values_that_sqlite_cannot_hold_are_one_line(
    database: Database, make_sample: SampleMaker, name: str
) -> None:
    sample = make_sample(kernels=0)
    kernel = Kernel(name=name, start_us=0.0, duration_us=1.0, stream=2**63)
    first = replace(sample.repetitions[0], kernels=(kernel,))
    with pytest.raises(DataError, match="value"):
        database.add_samples([replace(sample, repetitions=(first, *sample.repetitions[1:]))])
    assert database.read_samples() == []


def test_a_failing_iterable_stores_nothing(database: Database, make_sample: SampleMaker) -> None:
    def interrupted() -> Iterator[Sample]:
        yield make_sample()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        database.add_samples(interrupted())
    assert database.read_samples() == []
    assert database.add_samples([make_sample()]) == 1


def test_a_full_disk_is_one_line_and_leaves_the_database_whole(
    database: Database, make_sample: SampleMaker
) -> None:
    database.add_samples([make_sample()])
    pages = database.query("PRAGMA page_count")[0]["page_count"]
    database.connection.execute(f"PRAGMA max_page_count = {pages + 5}")
    with pytest.raises(DataError, match="disk is full") as caught:
        database.add_samples(make_sample(rows=rows, kernels=300) for rows in range(100, 120))
    assert "\n" not in str(caught.value)
    assert len(database.read_samples()) == 1
    assert database.query("PRAGMA integrity_check") == [{"integrity_check": "ok"}]


def test_a_writer_that_waits_in_vain_says_so(database: Database, make_sample: SampleMaker) -> None:
    other = sqlite3.connect(database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    database.connection.execute("PRAGMA busy_timeout = 20")
    with pytest.raises(DataError, match="locked for too long"):
        database.add_samples([make_sample()])
    assert database.read_samples() == []  # readers never wait
    other.close()


WRITER = """
import os, signal, sys
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.store import Database, Kernel, Repetition, Run, Sample

path, offset, kill = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "kill"
compute = ComputeFingerprint(kind="cuda", device_name="Example GPU", memory_gib=80)
software = SoftwareFingerprint(torch="2.13.0")
run = Run(started_at="2026-01-31T08:15:00Z", kernelcast_version="0", code_digest="", command="test",
          compute_id=compute.digest, software_id=software.digest)

def sample(rows):
    kernels = tuple(Kernel(name=f"kernel {rows % 7} {k}", start_us=k, duration_us=1) for k in range(20))
    return Sample.from_repetitions(
        run_id=run.id, operator="gemm", direction="forward", dtype="float32", vector=(rows, 8, 8),
        repetitions=[Repetition(index=i, time_us=9 + i, kernels=kernels) for i in range(10)])

def batch(number):
    for rows in range(offset + 5 * number, offset + 5 * number + 5):
        yield sample(rows)
    if kill and number == 3:
        os.kill(os.getpid(), signal.SIGKILL)

print("ready", flush=True)
sys.stdin.readline()
with Database.open(path, create=True) as database:
    database.add_run(run, compute, None, software)
    for number in range(20):
        database.add_samples(batch(number))
"""


def writer(path: Path, offset: int, *, kill: bool = False) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(offset), "kill" if kill else "live"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_that_create_and_write_at_once_lose_nothing(path: Path) -> None:
    # The last 50 of the first are the first 50 of the second: adding the same at once is fine too.
    writers = [writer(path, 1), writer(path, 51)]
    for process in writers:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in writers:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in writers:
        errors = process.communicate(timeout=600)[1]
        assert process.returncode == 0, errors
    assert sorted(p.name for p in path.parent.iterdir() if p.name.startswith(".")) == []
    with Database.open(path, read_only=True) as database:
        assert sorted(row.vector[0] for row in database.read_samples()) == list(range(1, 151))
        assert database.query("SELECT count(*) AS n FROM kernel") == [{"n": 150 * 10 * 20}]
        assert database.query("PRAGMA integrity_check") == [{"integrity_check": "ok"}]


def test_a_killed_writer_leaves_what_it_had_stored(path: Path) -> None:
    process = writer(path, 1, kill=True)
    process.communicate("go\n", timeout=600)
    assert process.returncode == -signal.SIGKILL
    with Database.open(path) as database:
        assert sorted(row.vector[0] for row in database.read_samples()) == list(range(1, 16))
        assert database.query("PRAGMA integrity_check") == [{"integrity_check": "ok"}]


def test_steps_predictions_and_predictors_come_back(database: Database, step: MeasuredStep) -> None:
    prediction = Prediction(
        step_id=database.add(step),
        bundle_digest="b",
        timeline="closed form",
        statistic="time_us",
        predicted_s=0.61,
        low_s=0.5,
        components_s={"update": 0.1, "pipeline": 0.51},
    )
    assert database.add(prediction) == database.add(prediction) == prediction.id
    assert database.add(step) == step.id
    assert database.records(MeasuredStep) == [step]
    assert database.records(Prediction) == [prediction]
    assert database.query("SELECT model_name FROM step") == [{"model_name": "small-gpt"}]
    with pytest.raises(DataError, match="not in the database"):
        database.add(replace(prediction, step_id="f" * 32))


def test_a_step_that_failed_is_a_row_with_a_reason(database: Database, step: MeasuredStep) -> None:
    failed = replace(
        step,
        status=Status.FAILED,
        reason="out of memory",
        min_s=None,
        p10_s=None,
        median_s=None,
        repetitions_s=(),
    )
    database.add(failed)
    assert database.records(MeasuredStep) == [failed]


def test_a_copy_of_the_file_is_the_database(
    database: Database, make_sample: SampleMaker, tmp_path: Path
) -> None:
    sample = make_sample(direction=Direction.BACKWARD)
    database.add_samples([sample])
    database.close()
    shutil.copy(database.path, tmp_path / "copy.db")
    with Database.open(tmp_path / "copy.db", read_only=True) as copy:
        assert list(copy.samples_in_full()) == [sample]
