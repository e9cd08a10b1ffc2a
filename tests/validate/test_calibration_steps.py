"""Measured steps of a database as runs: the bundle's hardware only, the fastest of each configuration."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import DataError, ModelConfig
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.bundle.manifest import Manifest
from kernelcast.runtime.request.fields import DEFAULT_BUCKET_ENTRIES
from kernelcast.store import Database, MeasuredStep, Run, Status
from kernelcast.validate.calibration_steps import stored_runs

MODEL = ModelConfig(
    name="tiny", hidden_size=64, sequence_length=8, attention_heads=8, layers=6, vocabulary_size=100
)
HERE, THERE = (ComputeFingerprint(kind="cpu", device_name=name, cores=2) for name in ("here", "there"))
FABRIC, SOFTWARE = FabricFingerprint(backend="gloo", gpus_per_node=2), SoftwareFingerprint(torch="2.13.0")


@pytest.fixture
def of_here(manifest: Callable[..., Manifest]) -> Manifest:
    """The manifest of a bundle that was measured here."""
    return replace(manifest([]), compute=(HERE,))


def store(
    path: Path,
    *steps: dict[str, Any],
    hardware: ComputeFingerprint = HERE,
    software: SoftwareFingerprint = SOFTWARE,
) -> None:
    run = Run(
        started_at="2026-01-01T00:00:00Z",
        kernelcast_version="0.1.0",
        code_digest="ab",
        command="a test",
        compute_id=hardware.digest,
        fabric_id=FABRIC.digest,
        software_id=software.digest,
    )
    usual: dict[str, Any] = {
        "run_id": run.id,
        "model": asdict(MODEL),
        "pp": 2,
        "tp": 1,
        "dp": 1,
        "micro_batch": 1,
        "micro_batches": 4,
        "schedule": "1F1B",
        "recomputation": False,
        "dtype": "float32",
        "measured_at": "2026-01-02T00:00:00Z",
    }
    with Database.open(path, create=True) as database:
        database.add_run(run, hardware, FABRIC, software)
        for step in steps:
            values = usual | step
            times = values.pop("times", (0.5, 0.6))
            if values.get("status") is Status.FAILED:
                database.add(MeasuredStep(**values))
            else:
                database.add(MeasuredStep.from_repetitions(repetitions_s=times, **values))


def test_the_fastest_of_each_configuration(tmp_path: Path, of_here: Manifest) -> None:
    path = tmp_path / "steps.db"
    options = {"zero": 2, "bucket_entries": 1000, "gpus_per_node": 4}
    store(
        path,
        {"times": (0.5, 0.6)},
        {"times": (0.4, 0.9), "measured_at": "2026-01-03T00:00:00Z"},
        {"micro_batches": 8, "schedule": "GPipe", "recomputation": True, "options": options, "times": (1.0,)},
        {"status": Status.FAILED, "reason": "out of memory", "tp": 2},
    )
    found = stored_runs(path, of_here)
    by_count = {run.parallelism.micro_batches: run for run in found.runs}
    assert set(by_count) == {4, 8}
    assert by_count[4].measured_s == 0.4
    assert by_count[4].model == MODEL
    assert (by_count[4].parallelism.schedule, by_count[4].parallelism.recompute) == ("1f1b", "none")
    other = by_count[8]
    assert (other.parallelism.schedule, other.parallelism.recompute, other.parallelism.zero) == (
        "gpipe",
        "full",
        2,
    )
    assert other.cluster is not None
    assert (other.cluster.gpus_per_node, other.bucket_entries) == (4, 1000)
    assert len({run.label for run in found.runs}) == 2
    assert found.measured_at.startswith("2026-01-03")
    digest = found.digest
    store(path, {"pp": 1, "schedule": ""})
    assert stored_runs(path, of_here).digest != digest


def test_a_configuration_is_one_whichever_command_stored_it(tmp_path: Path, of_here: Manifest) -> None:
    path = tmp_path / "steps.db"
    # The demo does not state nodes and layers; validate run states both.
    said = {"recompute": "none", "virtual_stages": 1, "zero": 1, "bucket_entries": DEFAULT_BUCKET_ENTRIES}
    whole = said | {"layer_counts": [4, 2], "gpus_per_node": 2}
    store(path, {"times": (1.3,)}, {"options": whole, "times": (1.25,)})
    [found] = stored_runs(path, of_here).runs
    assert found.measured_s == 1.25
    store(path, {"options": whole | {"layer_counts": [3, 3]}}, {"options": whole | {"gpus_per_node": 1}})
    assert len(stored_runs(path, of_here).runs) == 3
    # Where the bundle's nodes have one device each, a step that says nothing is predicted on such.
    [one, two] = (FabricFingerprint(backend="gloo", gpus_per_node=count) for count in (1, 2))
    assert len(stored_runs(path, replace(of_here, fabric=(one,))).runs) == 3
    assert len(stored_runs(path, replace(of_here, fabric=(one, two))).runs) == 4


def test_other_hardware_and_element_types_do_not_count(tmp_path: Path, of_here: Manifest) -> None:
    path = tmp_path / "steps.db"
    store(path, {}, hardware=THERE)
    store(path, {"dtype": "bfloat16"}, {"status": Status.FAILED, "reason": "out of memory"})
    with pytest.raises(
        DataError,
        match=r"steps\.db: no measured step of the bundle's hardware and software in float32, expected some "
        r"\(kernelcast validate run\); left out: 1 failed, 1 of another element type, 1 of other hardware$",
    ):
        stored_runs(path, of_here)
    assert len(stored_runs(path, replace(of_here, compute=())).runs) == 1
    assert len(stored_runs(path, replace(of_here, compute=(THERE,))).runs) == 1
    store(path, {"micro_batches": 3})
    found = stored_runs(path, of_here)
    assert [run.parallelism.micro_batches for run in found.runs] == [3]
    assert found.left_out == "1 failed, 1 of another element type, 1 of other hardware"


def test_steps_of_other_software_do_not_count(tmp_path: Path, of_here: Manifest) -> None:
    path = tmp_path / "steps.db"
    older = replace(SOFTWARE, torch="1.9.0")
    bound = replace(SOFTWARE, environment=("binding=cores of its own",))
    for software, time_s in ((SOFTWARE, 0.5), (older, 0.3), (bound, 0.4)):
        store(path, {"times": (time_s,)}, software=software)
    unknown = SoftwareFingerprint(torch="")
    for recorded, fastest_s in (
        ((SOFTWARE,), 0.5),
        ((bound,), 0.4),
        ((SOFTWARE, older), 0.3),
        ((SOFTWARE, unknown), 0.5),
        ((unknown,), 0.3),
        ((), 0.3),
    ):
        [run] = stored_runs(path, replace(of_here, software=recorded)).runs
        assert run.measured_s == fastest_s
    newer = replace(SOFTWARE, torch="3.0.0")
    with pytest.raises(DataError, match=r"; left out: 3 of other software$"):
        stored_runs(path, replace(of_here, software=(newer,)))


def test_labels_say_in_what_configurations_differ(tmp_path: Path, of_here: Manifest) -> None:
    path = tmp_path / "steps.db"
    store(
        path,
        {"schedule": "interleaved", "options": {"virtual_stages": 2}},
        {"schedule": "interleaved", "options": {"virtual_stages": 3}},
        {"options": {"zero": 2}},
        {"options": {"recompute": "selective"}},
        {"options": {"recompute": "selective", "sequence_parallel": True}},
        {"options": {"layer_counts": [2, 4]}},
        {"options": {"bucket_entries": 1000}},
        {"options": {"gpus_per_node": 1}},
        {"model": asdict(replace(MODEL, sequence_length=16))},
        {"micro_batches": 8},
        {"pp": 1},
    )
    labels = {frozenset(run.label.split("), ")[-1].split(", ")) for run in stored_runs(path, of_here).runs}
    assert len(labels) == 11
    assert {frozenset({"tiny (1-1-1)"}), frozenset({"8 × 1"})} <= labels
    assert {
        frozenset({"4 × 1", "schedule interleaved", f"virtual_stages {count}"}) for count in (2, 3)
    } <= labels
    usual = {"4 × 1", "schedule 1f1b", "recompute none", "sequence_parallel false"}
    assert {"4 × 1", "schedule 1f1b", "sequence_parallel false", "recompute selective"} in labels
    assert {"4 × 1", "schedule 1f1b", "sequence_parallel true"} in labels
    assert {*usual, "zero 2"} in labels
    usual |= {"zero 1"}
    assert {*usual, "layer_counts [2", "4]"} in labels
    usual |= {"layer_counts [4", "2]"}
    assert {*usual, "gpus_per_node 1"} in labels
    for entries in (1000, DEFAULT_BUCKET_ENTRIES):
        assert {*usual, "gpus_per_node 2", f"bucket_entries {entries}"} in labels


def test_a_step_that_this_version_cannot_lay_out_is_named(tmp_path: Path, of_here: Manifest) -> None:
    path = tmp_path / "steps.db"
    store(path, {"schedule": "spiral"})
    with pytest.raises(DataError, match=r"steps\.db: step [0-9a-f]{12}: schedule is 'spiral', expected"):
        stored_runs(path, of_here)
    other = tmp_path / "other.db"
    store(other, {"model": {"name": "small-gpt", "d": 512}})
    crowded = tmp_path / "crowded.db"
    store(crowded, {"pp": 9})
    with pytest.raises(
        DataError, match=r"crowded\.db: step [0-9a-f]{12}: pp is 9, expected from 1 to 6 for 6"
    ):
        stored_runs(crowded, of_here)
    with pytest.raises(DataError, match=r"other\.db: step [0-9a-f]{12}: model: field 'd' is unknown"):
        stored_runs(other, of_here)


def test_steps_of_traces_are_left_out(tmp_path: Path, of_here: Manifest) -> None:
    path = tmp_path / "bench.db"
    store(path, {"times": (1.0,)}, {"times": (0.5,), "options": {"profiled": True}})
    found = stored_runs(path, of_here)
    assert [run.measured_s for run in found.runs] == [1.0]
    assert found.left_out == "1 under a profiler"
