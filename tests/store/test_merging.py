"""Merging: any order, any grouping, twice: the same content; what is not sound merges nothing."""

import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelcast.runtime.bundle.fingerprint import (
    ComputeFingerprint,
    SoftwareFingerprint,
)
from kernelcast.runtime.operators import Direction
from kernelcast.store import (
    Database,
    Kernel,
    MeasuredStep,
    Prediction,
    Repetition,
    Run,
    Sample,
    check_database,
    merge_databases,
)

SampleMaker = Callable[..., Sample]

GPUS = [ComputeFingerprint(kind="cuda", device_name="Example GPU", power_limit_w=watt) for watt in (300, 400)]
SOFTWARE = [SoftwareFingerprint(torch="2.13.0", driver=driver) for driver in ("550", "570")]


@st.composite
def runs(
    draw: st.DrawFn,
) -> tuple[Run, ComputeFingerprint, SoftwareFingerprint, list[Sample], list[MeasuredStep]]:
    """A run on one of four machines, with samples and steps; few values, so that databases overlap."""
    compute, software = draw(st.sampled_from(GPUS)), draw(st.sampled_from(SOFTWARE))
    run = Run(
        started_at=draw(st.sampled_from([None, "2026-01-31T08:15:00Z"])),
        kernelcast_version="0.1.0",
        command="collect compute",
        compute_id=compute.digest,
        software_id=software.digest,
        site=draw(st.sampled_from(["", "one site", "another"])),
    )
    samples = [
        Sample.from_repetitions(
            run_id=run.id,
            operator="gelu",
            direction=Direction.FORWARD,
            dtype="float32",
            vector=(1, 1, rows),
            repetitions=[
                Repetition(
                    index=i,
                    time_us=time_us,
                    kernels=tuple(Kernel(name=name, start_us=0.0, duration_us=1.5) for name in names),
                )
                for i in range(2)
            ],
            flags=flags,
        )
        for rows, time_us, names, flags in draw(
            st.lists(
                st.tuples(
                    st.integers(1, 3),
                    st.sampled_from([1.0, 2.5]),
                    st.lists(st.sampled_from(["gemm", "copy"]), max_size=2),
                    st.sampled_from([(), (("unstable", "spread 31 %"),)]),
                ),
                max_size=3,
            )
        )
    ]
    steps = [
        MeasuredStep.from_repetitions(
            repetitions_s=[step_s],
            run_id=run.id,
            model={"name": "small-gpt"},
            pp=1, tp=1, dp=1, micro_batch=1, micro_batches=1,
            schedule="",
            recomputation=False,
            dtype="float32",
        )
        for step_s in draw(st.lists(st.sampled_from([0.5, 0.6]), max_size=1))
    ]  # fmt: skip
    return run, compute, software, samples, steps


def write(
    path: Path,
    contents: Sequence[tuple[Run, ComputeFingerprint, SoftwareFingerprint, list[Sample], list[MeasuredStep]]],
) -> Path:
    with Database.open(path, create=True) as database:
        for run, compute, software, samples, steps in contents:
            database.add_run(run, compute, None, software)
            database.add_samples(samples)
            for step in steps:
                database.add(
                    Prediction(
                        step_id=database.add(step),
                        bundle_digest="b",
                        timeline="closed form",
                        statistic="time_us",
                        predicted_s=0.55,
                    )
                )
    return path


def rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row in terms that mean the same in every file: numbers replaced by ids and names."""
    with Database.open(path, read_only=True) as database:
        connection = database.connection
        tables = {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()
            for table in ("hardware", "fabric", "software", "source", "run", "run_note", "step", "prediction")
        }
        tables["sample"] = [(sample.id, sample) for sample in database.samples_in_full()]
        return tables


@settings(max_examples=7, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(runs(), max_size=2), min_size=3, max_size=3))
def test_order_grouping_and_repetition_make_no_difference(contents: list[list]) -> None:  # type: ignore[type-arg]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        a, b, c = (write(folder / f"{n}.db", parts) for n, parts in zip("abc", contents, strict=True))
        before = [path.read_bytes() for path in (a, b, c)]
        whole = merge_databases([a, b, c], folder / "abc.db")
        backward = merge_databases([c, b, a], folder / "cba.db")
        merge_databases([a, b], folder / "ab.db")
        left = merge_databases([folder / "ab.db", c], folder / "ab_c.db")
        merge_databases([b, c], folder / "bc.db")
        right = merge_databases([a, folder / "bc.db"], folder / "a_bc.db")
        again = merge_databases([a, folder / "abc.db", b, b], folder / "abc.db")
        assert len({m.content_digest for m in (whole, backward, left, right, again)}) == 1
        assert not any(sum(counts.values()) for _, counts in again.added)
        expected = rows(folder / "abc.db")
        assert all(rows(folder / f"{other}.db") == expected for other in ("cba", "ab_c", "a_bc"))
        assert check_database(folder / "cba.db") == []
        assert [path.read_bytes() for path in (a, b, c)] == before
        with Database.open(folder / "abc.db") as database:
            assert database.content_digest() == whole.content_digest


def test_added_rows_are_counted_per_table(
    database: Database,
    make_sample: SampleMaker,
    step: MeasuredStep,
    add_trace: Callable[..., object],
    other: Path,
) -> None:
    database.add_samples(make_sample(rows=rows) for rows in (1, 2, 3))
    database.add(step)
    add_trace(rank=0)
    add_trace(rank=1)
    database.close()
    one_each = ("hardware", "fabric", "software", "run", "run_note", "step")
    new = Counter(
        {**dict.fromkeys(one_each, 1), "sample": 3, "trace": 2, "unrecognised_kernel": 2, "timeline": 2}
    )
    added = merge_databases([database.path, database.path], other.with_name("new.db")).added
    assert [(path, +counts - Counter(source=1)) for path, counts in added] == [
        (database.path, new),
        (database.path, Counter()),
    ]
    # The other database has all but another run.
    [(_, more)] = merge_databases([database.path], other).added
    assert +more == new - Counter(hardware=1, fabric=1, software=1)


def test_wording_of_another_version_is_no_difference(database: Database, other: Path) -> None:
    database.close()
    with closing(sqlite3.connect(database.path)) as connection, connection:
        connection.execute("UPDATE hardware SET description = 'in other words'")
    [(_, added)] = merge_databases([database.path], other).added
    assert added["hardware"] == 0
    with Database.open(other) as merged:
        assert [one.description for one in merged.hardware_list()] != ["in other words"]


KILLED = """
import os, signal, sys
from kernelcast.store import copying, merge_databases
of = copying._Copy.of
def killed(self, table, where, parameters):
    if table == "step":  # the samples are written, far beyond what fits into the page cache
        os.kill(os.getpid(), signal.SIGKILL)
    return of(self, table, where, parameters)
copying._Copy.of = killed
merge_databases([sys.argv[1]], sys.argv[2])
"""


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.slow
def test_a_killed_merge_leaves_the_target_as_it_was(
    database: Database, make_sample: SampleMaker, other: Path, is_there: bool
) -> None:
    database.add_samples(make_sample(rows=rows, kernels=100) for rows in range(1, 101))
    target = other if is_there else other.with_name("new.db")
    before = rows(other)
    done = subprocess.run([sys.executable, "-c", KILLED, str(database.path), str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    if is_there:
        assert rows(other) == before
        assert check_database(other) == []
    else:
        assert not target.exists()
    assert merge_databases([database.path], target).added[0][1]["sample"] == 100
