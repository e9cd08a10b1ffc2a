"""`kernelcast predict --explain`: an operator's times, ranges and nearest samples."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli.predict import predict
from kernelcast.runtime import UsageError
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, SoftwareFingerprint
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.views.formatting import gibibytes
from kernelcast.store import Database, Repetition, Run, Sample

Make = Callable[..., Path]
Predict = Callable[..., Result]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with three samples of gelu's forward pass."""
    compute = ComputeFingerprint(kind="cpu", device_name="Example CPU", cores=2, threads=1)
    software = SoftwareFingerprint(torch="2.13.0")
    path = tmp_path / "bench.db"
    with Database.open(path, create=True) as opened:
        run = Run(
            started_at="2026-01-31T08:15:00Z",
            kernelcast_version="0.1.0",
            command="collect",
            compute_id=compute.digest,
            fabric_id=None,
            software_id=software.digest,
        )
        opened.add_run(run, compute, None, software)
        opened.add_samples(
            Sample.from_repetitions(
                run_id=run.id,
                operator="gelu",
                direction=Direction.FORWARD,
                dtype="float32",
                vector=vector,
                repetitions=[Repetition(index=index, time_us=time_us) for index in range(10)],
                measured_at="2026-01-31T08:16:00Z",
            )
            for vector, time_us in (((1, 8, 64), 7.0), ((1, 4, 32), 5.0), ((1, 4, 64), 6.0))
        )
    return path


def test_explained(make_bundle: Make, model_file: Path, run: Predict) -> None:
    lines = run(make_bundle(largest=20), model_file, "--explain", "qkv").output.splitlines()
    assert lines[0].startswith("step ")
    at = lines.index("gemm qkv, Linear1 (forward)")
    assert lines[at + 1] == "  time       10.00 µs, 5.000 to 20.00 µs (90 %)"
    assert lines[at + 2].startswith("  calls      12 per step, 120.0 µs, ")
    assert lines[at + 3] == "  regressor  linear, form time, 1 samples, error 0.0% in its range"
    assert lines[at + 4] == "  load       not stated"
    assert lines[at + 8 : at + 11] == [
        "  m        rows             4             1  20  yes",
        "  k        columns in       8             1  20  yes",
        "  n        columns out     24             1  20  NO",
    ]
    assert "gemm qkv, Linear1 (input_gradient)" in lines


def test_explained_by_operator_or_by_the_paper_s_name(
    make_bundle: Make, model_file: Path, run: Predict
) -> None:
    def headings(name: str) -> list[str]:
        lines = run(make_bundle(), model_file, "--explain", name).output.splitlines()
        return [line for line in lines if line.startswith(("gemm", "gelu", "causal"))]

    assert headings("Linear1") == headings("qkv")
    gradients = ("forward", "input_gradient", "weight_gradient")
    assert headings("qkv") == [f"gemm qkv, Linear1 ({direction})" for direction in gradients]
    every = headings("gemm")
    assert set(headings("qkv")) < set(every)
    assert {"gemm attention_output, Linear2 (forward)", "gemm logits, Final_Linear (forward)"} < set(every)
    assert headings("gelu")[0] == "gelu, Glue (forward)"
    error = run(make_bundle(), model_file, "--explain", "qkv_linear").exception
    assert isinstance(error, UsageError)
    assert str(error).startswith("operator qkv_linear is unknown; of this step ")


STATES = ("weights", "gradients", "optimizer")


def test_memory_by_op_and_next_to_a_snapshot(
    make_bundle: Make, model_file: Path, run: Predict, tmp_path: Path
) -> None:
    snapshot = tmp_path / "snapshot.json"
    blocks = [{"size": 10**6, "state": "active_allocated"}, {"size": 10**6, "state": "inactive"}]
    snapshot.write_text(json.dumps({"segments": [{"device": 0, "total_size": 2 * 10**6, "blocks": blocks}]}))
    arguments = ["--pp", "2", "--explain", "memory", "--memory-snapshot", str(snapshot)]
    values = json.loads(run(make_bundle(), model_file, *arguments, "--json").output)
    stages = values["memory"]["stages"]
    for stage, found in zip(stages, values["memory_breakdown"], strict=True):
        assert sum(one["size_bytes"] for one in found["ops"]) == stage["total_bytes"]
        assert found["stage"] == stage["stage"]
    measured = {"device": 0, "allocated_bytes": 10**6, "largest_bytes": 10**6, "reserved_bytes": 2 * 10**6}
    assert values["memory_snapshot"] == {**measured, "theoretical": {}}
    lines = [line.split() for line in run(make_bundle(), model_file, *arguments).output.splitlines()]
    [total] = [line for line in lines if line[:1] == ["total"]]
    [allocated] = [line for line in lines if line[:3] == ["allocated", "at", "most"]]
    fullest = max(stage["total_bytes"] for stage in stages)
    assert total[-2:] == allocated[-4:-2] == gibibytes(fullest).split()
    assert [line for line in lines if line[:1] == ["reserved"]]
    stage = max(stages, key=lambda one: one["total_bytes"])
    parts = {"weight and optimizer": STATES, "activation": ("activations", "logits"), "total": ("total",)}
    halves = (
        f"{key}={sum(stage[f'{one}_bytes'] for one in names) / 2**21:.6f} MB" for key, names in parts.items()
    )
    snapshot.write_text(f"Theoretical memory footprints: {', '.join(halves)}")
    shown = run(make_bundle(), model_file, *arguments).output.splitlines()
    theory = [line.split() for line in shown if "theory:" in line]
    assert [line[-2:] for line in theory] == [["+100.0", "%"]] * 3
    # Nothing of a CPU is reserved, unless it is given.
    asked = (arguments, [*arguments, *["--gpu-memory", "8GiB", "--reserved-memory", "1GiB"]])
    texts = [" ".join(run(make_bundle(), model_file, *each).output.split()) for each in asked]
    assert ["(1.0 GiB reserved)" in text for text in texts] == [False, True]
    assert not any("NCCL" in text for text in texts)
    words = "predict --hardware h100-sxm --model llama-2-7b --tp 2 --dp 4 --micro-batch 1 --micro-batches 2"
    made = CliRunner().invoke(predict, [*words.split()[1:], "--explain", "memory"])
    [nccl] = [line.split() for line in made.output.splitlines() if line.startswith("  NCCL: ")]
    assert (nccl[:3], nccl[-2:]) == (["NCCL:", "tp,", "dp"], ["0.7", "GiB"])
    error = run(make_bundle(), model_file, "--explain", "memory", "--db", "bench.db").exception
    assert str(error) == "--db is given with --explain memory, expected an operator's name"


def test_explained_with_the_nearest_samples(
    make_bundle: Make, model_file: Path, run: Predict, database: Path
) -> None:
    arguments = ["--explain", "gelu", "--db", str(database)]
    result = run(make_bundle(), model_file, *arguments, "--json")
    forward, backward = json.loads(result.output)["explanations"]
    assert forward["vector"] == [1, 4, 32]
    assert [sample["vector"] for sample in forward["nearest"]] == [[1, 4, 32], [1, 4, 64], [1, 8, 64]]
    # The bundle's statistic is quiet: of ten times the 10th percentile.
    assert forward["nearest"][0]["time_us"] == pytest.approx(5.0)
    assert forward["nearest"][1]["distance"] == pytest.approx(math.log(2))
    assert forward["nearest"][0]["hardware"].startswith("Example CPU")
    assert backward["nearest"] == []
    lines = run(make_bundle(), model_file, *arguments).output.splitlines()
    at = lines.index("  Nearest samples (distance between logarithms)")
    assert lines[at + 1].split() == ["b", "l", "width", "distance", "time", "hardware"]
    assert lines[at + 3].split()[:5] == ["1", "4", "32", "0.000", "5.000"]
    assert "  The database holds no samples of it." in lines


def test_samples_need_the_store(
    make_bundle: Make, model_file: Path, run: Predict, monkeypatch: pytest.MonkeyPatch, database: Path
) -> None:
    for name in [name for name in sys.modules if name.startswith("kernelcast.store")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlite_utils", None)
    result = run(make_bundle(), model_file, "--explain", "gelu", "--db", str(database))
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == (
        "--db needs the package sqlite_utils, which is not installed; "
        "expected: pip install 'kernelcast[store]'"
    )
