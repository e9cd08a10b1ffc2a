"""Files into a database: ranks of a job as one run, everything or nothing, twice as once."""

import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcast.collector.ingest import ingest_traces, operator_counts
from kernelcast.runtime import DataError, UsageError
from kernelcast.store import Database, IngestedTrace, check_database

FileMaker = Callable[..., Path]
SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "traces"
NOT_A_TRACE = "not_a_kineto_trace_et.json.gz"
NO_KERNEL = "rank_not_found.json.gz"


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "bench.db"


def test_a_trace_becomes_a_run_with_its_machine(make_file: FileMaker, db: Path) -> None:
    [one] = ingest_traces([make_file("rank0.json")], db, site="Example site")
    assert check_database(db) == []
    with Database.open(db, read_only=True) as database:
        [run] = database.run_list()
        [hardware], [fabric], [software] = (
            database.hardware_list(), database.fabric_list(), database.software_list(),
        )  # fmt: skip
        samples = list(database.samples_in_full())
        [trace] = database.records(IngestedTrace)
        [row] = database.query("SELECT * FROM real_run")
    assert (run.command, run.site, run.source.kind) == ("ingest", "Example site", "trace")
    assert run.source.name == "PyTorch profiler"  # the file's name may be a host's
    assert run.source.file_digest == trace.file_digest
    assert run.conditions == {"real_run": True, "world_size": 2}
    assert run.started_at == "2025-10-09T08:53:20.001Z"
    device = hardware.fingerprint
    assert (device.kind, device.device_name, device.memory_gib, device.multiprocessors) == (
        "cuda", "Example GPU", 80, 132,
    )  # fmt: skip
    assert (device.compute_capability, device.power_limit_w, device.ecc) == ("9.0", 0, "")
    assert (software.fingerprint.cuda, software.fingerprint.nccl, software.fingerprint.torch) == (
        "12.8",
        "",
        "",
    )
    assert (fabric.fingerprint.backend, fabric.fingerprint.gpus_per_node) == ("nccl", 8)
    assert {sample.id for sample in samples} == {sample.id for sample in one.samples}
    linear = next(s for s in samples if s.role == "qkv" and s.direction.value == "forward")
    assert [k.name for k in linear.repetitions[0].kernels] == ["gemm_qkv", "bias"]
    assert linear.flops == 2 * 4 * 8 * 24
    [reduced] = [s for s in samples if s.direction.value == "once"]
    assert [name for name, _ in reduced.flags] == ["overlapped"]
    assert trace == one.trace
    assert (row["kernels"], row["attributed_percent"]) == (16, 90.1)


def test_ranks_of_a_job_are_one_run(make_file: FileMaker, db: Path) -> None:
    files = [make_file("rank0.json"), make_file("rank1.json", rank=1)]
    done = ingest_traces(files, db)
    assert [one.path for one in done] == files
    assert operator_counts(done)["layer_norm", "", "forward", "bfloat16"] == 2
    with Database.open(db, read_only=True) as database:
        assert len(database.run_list()) == 1
        assert [
            trace.rank for trace in sorted(database.records(IngestedTrace), key=lambda t: t.rank or 0)
        ] == [0, 1]


def test_the_same_rank_twice_or_another_device_is_another_run(make_file: FileMaker, db: Path) -> None:
    again = make_file("again.json", displayTimeUnit="ns")
    other = make_file("other.json", rank=1, deviceProperties=[{"id": 0, "name": "Other GPU"}] * 8)
    ingest_traces([make_file("rank0.json"), again, other], db)
    with Database.open(db, read_only=True) as database:
        assert len(database.run_list()) == 3


def test_occurrences_are_repetitions_of_one_point(make_file: FileMaker, db: Path, step: object) -> None:
    later = [{**event, "ts": event["ts"] + 5000} for event in step.events]  # type: ignore[attr-defined]
    for event in later:
        arguments = event["args"]
        shifted = {
            name: arguments[name] + 10_000 for name in ("External id", "correlation") if name in arguments
        }
        event["args"] = arguments | shifted
    [one] = ingest_traces([make_file("two.json", events=[*step.events, *later])], db)  # type: ignore[attr-defined]
    assert {sample.repetition_count for sample in one.samples} == {2}
    [embedding] = [sample for sample in one.samples if sample.operator == "embedding"]
    assert [repetition.start_us for repetition in embedding.repetitions] == [0.0, 5000.0]


def test_twice_is_as_once(make_file: FileMaker, db: Path) -> None:
    files = [make_file("rank0.json"), make_file("rank1.json", rank=1)]
    ingest_traces(files, db)
    with Database.open(db) as database:
        before = database.content_digest()
    assert [one.is_new for one in ingest_traces([*files, files[0]], db)] == [False, False]
    extra = make_file("rank2.json", rank=2)
    done = ingest_traces([files[0], extra, extra], db)
    assert [(one.path, one.is_new) for one in done] == [(files[0], False), (extra, True)]
    with Database.open(db) as database:
        assert database.content_digest() != before
        assert len(database.records(IngestedTrace)) == 3


def test_stating_the_nodes_size_decides_the_layout(make_file: FileMaker, db: Path) -> None:
    [one] = ingest_traces([make_file("rank0.json")], db, gpus_per_node=1)
    assert {s.vector for s in one.samples if s.operator == "all_reduce"} == {(4096, 2, 1)}


BOMB = gzip.compress(b"[" + b" " * 80_000_000, mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty, expected a Kineto trace"),
        (b'{"nodes": [], "schema": "1.0.1"}', "no list 'traceEvents' found, expected a Kineto trace"),
        (b"[1, 2]", "no list 'traceEvents' found, expected a Kineto trace"),
        (b'{"traceEvents": []}', "holds no event with a duration, expected a trace of a run"),
        (b'{"traceEvents": [{"ph": "X", "na', "not readable as JSON or gzip JSON"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "not readable as JSON or gzip JSON"),
        (BOMB, "unpacks to more than 200 times its size, expected a trace"),
        (None, "no such file, expected a Kineto trace"),
    ],
)
@pytest.mark.parametrize("there_before", [True, False])
def test_what_is_no_trace_is_named_and_nothing_is_stored(
    make_file: FileMaker, tmp_path: Path, db: Path, content: bytes | None, message: str, there_before: bool
) -> None:
    if there_before:
        ingest_traces([make_file("before.json", rank=5)], db)
    before = db.read_bytes() if there_before else None
    bad = tmp_path / "bad.json.gz"
    if content is not None:
        bad.write_bytes(content)
    with pytest.raises(DataError) as caught:
        ingest_traces([make_file("good.json"), bad], db)
    assert str(caught.value).startswith(f"{bad}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (db.read_bytes() if db.exists() else None) == before


def test_no_file_and_a_folder(tmp_path: Path, db: Path) -> None:
    with pytest.raises(UsageError, match="found no trace"):
        ingest_traces([], db)
    with pytest.raises(DataError, match="cannot be read"):
        ingest_traces([tmp_path], db)


def test_ingesting_needs_no_torch() -> None:
    code = (
        "import sys, kernelcast.collector.ingest\n"
        "import kernelcast.collector.traces.kineto, kernelcast.collector.traces.attribution\n"
        "sys.exit(1 if 'torch' in sys.modules else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data/traces next to the checkout")
@pytest.mark.slow
def test_traces_that_other_projects_published(db: Path) -> None:
    files = sorted(SHARED.glob("*/*.json.gz"))
    good = [path for path in files if path.name not in (NOT_A_TRACE, NO_KERNEL)]
    before = list(db.parent.iterdir())
    with pytest.raises(DataError, match=f"{NOT_A_TRACE}: no list 'traceEvents' found"):
        ingest_traces(files, db)
    with pytest.raises(DataError, match=f"{NO_KERNEL}: holds no kernel, only events of the host"):
        ingest_traces([path for path in files if path.name != NOT_A_TRACE], db)
    assert list(db.parent.iterdir()) == before
    done = {one.path.name: one for one in ingest_traces(good, db)}
    assert check_database(db) == []
    ddp = done["nccl_data.json.gz"]
    counts = operator_counts([ddp])
    assert counts == {("all_reduce", "", "once", "float32"): 15}
    assert {s.vector for s in ddp.samples} >= {(6637568, 1, 2), (2431040, 1, 2)}
    assert operator_counts([done["test.json.gz"]]) == {
        ("gemm", "", "forward", "float32"): 180,
        ("gemm", "", "backward", "float32"): 180,
        ("layer_norm", "", "forward", "float32"): 90,
        ("layer_norm", "", "backward", "float32"): 90,
    }
    inference = done["h100_qwen1.5-0.5b_chat.json.gz"]
    assert {(s.operator, s.role, s.vector, s.repetition_count) for s in inference.samples} == {
        ("embedding", "", (8944, 151936, 1024), 1),
        ("flash_attention", "", (16, 559, 16, 16, 64), 24),
        # Queries, keys and values apart, and the output, which has their shape; gate and up apart.
        ("gemm", "qkv", (8944, 1024, 1024), 72),
        ("gemm", "attention_output", (8944, 1024, 1024), 24),
        ("gemm", "mlp_gate_up", (8944, 1024, 2816), 48),
        ("gemm", "mlp_down", (8944, 2816, 1024), 24),
        ("batched_gemm", "", (1, 32, 1, 559), 1),
        # Several calls each.
        ("rms_norm", "", (16, 559, 1024), 49),
        ("rope", "", (16, 559, 16, 16, 64), 24),
        ("swiglu", "", (16, 559, 2816), 24),
        ("residual_add", "", (16, 559, 1024), 48),
    }
    assert inference.device == "NVIDIA H100 80GB HBM3, 80 GiB"
    for one in done.values():
        assert one.trace is not None
        kept = one.trace.recognised_count + sum(left.kernel_count for left in one.unrecognised)
        assert kept == one.trace.kernel_count
    ranks = {done[f"sampled_rank-{rank}.json.gz"].trace.run_id for rank in (0, 1)}  # type: ignore[union-attr]
    assert len(ranks) == 1
