"""Real steps and predictions: what is configured, stored, found again and added up."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelcast.collector.machine.probe import Fingerprints, probe
from kernelcast.collector.plans.plan import compute_points
from kernelcast.collector.plans.plan_file import load_plan
from kernelcast.collector.training.job import TrainingEffort, TrainingJob, Turn
from kernelcast.runtime import Cluster, DataError, Estimator, UsageError
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.step.decomposition import decompose
from kernelcast.store import Database, MeasuredStep, Prediction
from kernelcast.validate import run as run_module
from kernelcast.validate.run import RunOptions, validate_run
from kernelcast.validate.run_config import RunConfig

SMALL = """
rounds = 2
warm_up_steps = 1
seed = 3
[models.tiny]
hidden_size = 32
sequence_length = 16
attention_heads = 4
layers = 3
vocabulary_size = 200
[defaults]
model = "tiny"
tp = 1
dp = 1
micro_batch = 1
micro_batches = 2
[[runs]]
pp = 1
[[runs]]
pp = 2
"""


def keys_of(processes: int) -> Fingerprints:
    return probe(torch.device("cpu"), threads=1, processes=processes)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return load(tmp_path, SMALL)


def load(folder: Path, text: str) -> RunConfig:
    path = folder / "runs.toml"
    path.write_text(text)
    return RunConfig.load(path, dtype="float32")


@pytest.mark.parametrize(
    ("name", "plan", "norms", "labels"),
    [
        (None, "validate", {"layer_norm", "rms_norm"}, {"1-1-1", "2-1-1", "1-2-1", "1-1-2"}),
        ("modern", "modern", {"rms_norm"}, {"1-1-1", "1-1-2", "1-1-2-ep2", "1-1-1-cp2"}),
    ],
)
def test_what_ships_was_not_measured_alone(
    name: str | None, plan: str, norms: set[str], labels: set[str]
) -> None:
    jobs = RunConfig.load(None if name is None else Path(name), dtype="float32").jobs
    assert {job.label for job in jobs} == labels
    assert {job.model.norm for job in jobs} == norms
    measured = {(point.operator, point.vector) for point in compute_points(load_plan(plan))}
    asked = set()
    for job in jobs:
        parts = decompose(
            model=job.model,
            parallelism=job.parallelism,
            cluster=Cluster(gpus_per_node=2),
            bucket_entries=job.bucket_entries,
        )
        calls = (call for stage in range(job.parallelism.pp) for _, call in parts.calls(stage))
        asked |= {(call.operator, call.shape) for call in calls if not OPERATORS[call.operator].is_collective}
    assert not asked & measured
    assert {name for name, _ in asked} <= {name for name, _ in measured}


@pytest.mark.slow
def test_steps_are_stored_and_found_again(
    config: RunConfig, make_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator = Estimator.load(make_bundle())
    options = RunOptions(repetitions=2, steps=4, timeout_s=3000)
    seen = []
    with Database.open(tmp_path / "bench.db", create=True) as database:
        report = validate_run(
            database,
            config,
            estimator,
            keys_of,
            options,
            lambda done, total, label: seen.append((done, total)),
        )
        assert seen == [(done, 8) for done in range(1, 9)]
        steps, predictions = database.records(MeasuredStep), database.records(Prediction)
        assert len(steps) == 4
        assert len(predictions) == 8
        assert all(len(step.repetitions_s) == 4 for step in steps)
        assert {run.command for run in database.run_list()} == {"validate run"}

        def never(*args: object, **options: object) -> None:
            raise AssertionError("trained again")

        monkeypatch.setattr(run_module, "train_jobs", never)
        again = validate_run(database, config, estimator, keys_of, options)
        assert again.to_dict() == report.to_dict()
        with pytest.raises(AssertionError, match="trained again"):
            validate_run(database, config, estimator, keys_of, RunOptions(repetitions=3, steps=4))
        with pytest.raises(AssertionError, match="trained again"):
            validate_run(database, config, estimator, keys_of, RunOptions(repetitions=2, steps=4, again=True))
    check_report(report.to_dict())


def check_report(found: dict[str, Any]) -> None:
    errors = []
    for one in found["runs"]:
        assert one["error"] == pytest.approx(one["predicted_s"] / one["measured_s"] - 1)
        assert one["measured_s"] == min(r["measured_s"] for r in one["repetitions"])
        assert 0 < one["measured_s"] <= one["p10_s"] <= one["median_s"]
        errors.append(abs(one["error"]))
        low_s, high_s = one["interval_s"]
        assert one["inside"] is (low_s <= one["measured_s"] <= high_s)
        components = {c["name"]: c for c in one["components"]}
        assert components["Overall"]["measured_s"] == one["measured_s"]
        assert components["Encoder_Fwd"]["measured_s"] > 0
        operators = {(o["operator"], o["direction"]): o for o in one["operators"]}
        qkv = operators["gemm/qkv", "backward"]
        assert qkv["calls"] == 6  # 3 layers, 2 micro-batches
        assert qkv["predicted_us_per_call"] == pytest.approx(20.0)
        assert qkv["measured_us_per_call"] == pytest.approx(qkv["measured_s"] / 6 * 1e6)
        assert sum(o["share"] for o in one["operators"]) == pytest.approx(1)
    assert found["mean_abs_error"] == pytest.approx(sum(errors) / len(errors))
    assert abs(found["worst_error"]) == pytest.approx(max(errors))
    assert found["inside"] == sum(one["inside"] for one in found["runs"])
    assert len(found["repetitions"]) == 2
    assert found["noise"]["largest"] >= found["noise"]["steps"] >= 0


def test_a_failure_keeps_what_was_measured(
    config: RunConfig, make_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(
        jobs: list[TrainingJob], *, effort: TrainingEffort, on_turn: Callable[[Turn], None], **_: Any
    ) -> None:
        take_turns(len(jobs), effort, on_turn, rounds=effort.rounds)
        raise DataError("worker: gone")

    monkeypatch.setattr(run_module, "train_jobs", fail)
    with Database.open(tmp_path / "bench.db", create=True) as database:
        with pytest.raises(DataError, match=r"^worker: gone; 2 of 4 measurements are stored$"):
            validate_run(
                database, config, Estimator.load(make_bundle()), keys_of, RunOptions(repetitions=2, steps=2)
            )
        assert len(database.records(MeasuredStep)) == 2
        # Again: rows that exist already are stored as well.
        with pytest.raises(DataError, match=r"^worker: gone; 4 of 4 measurements are stored$"):
            validate_run(
                database, config, Estimator.load(make_bundle()), keys_of, RunOptions(repetitions=2, steps=2)
            )


def take_turns(jobs: int, effort: TrainingEffort, on_turn: Callable[[Turn], None], *, rounds: int) -> None:
    """What training reports, without any."""
    for number in range(rounds):
        for job in range(jobs):
            on_turn(Turn(job=job, round=number, steps_s=(0.5,) * effort.steps, reference_us=(), traces=()))


@pytest.mark.parametrize("rounds", [2, 6])
def test_a_repetition_that_was_cut_short_is_measured_again(
    rounds: int, make_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load(tmp_path, SMALL.replace("rounds = 2", f"rounds = {rounds}"))
    trained = []

    def train(
        jobs: list[TrainingJob], *, effort: TrainingEffort, on_turn: Callable[[Turn], None], **_: Any
    ) -> None:
        trained.append(len(jobs))
        is_lost = len(trained) == 1
        take_turns(len(jobs), effort, on_turn, rounds=effort.rounds - is_lost)
        if is_lost:
            raise DataError("worker: gone")

    monkeypatch.setattr(run_module, "train_jobs", train)
    estimator, options = Estimator.load(make_bundle()), RunOptions(repetitions=1, steps=20)
    with Database.open(tmp_path / "bench.db", create=True) as database:
        with pytest.raises(DataError, match=r"^worker: gone; 0 of 2 measurements are stored$"):
            validate_run(database, config, estimator, keys_of, options)
        kept = database.records(MeasuredStep)
        assert len(kept) == 2  # nothing that was measured is lost
        # Fewer steps requested: there are enough, but of some rounds only, and the last one is traced.
        report = validate_run(database, config, estimator, keys_of, RunOptions(repetitions=1, steps=10))
        assert trained == [2, 2]
        assert {len(step.repetitions_s) for job in report.jobs for step in job.steps} <= {10, 12}
        assert len(database.records(MeasuredStep)) == 4


def test_what_is_trained_is_what_was_asked_and_stored_with_its_reference(
    config: RunConfig, make_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def train(jobs: list[TrainingJob], *, on_turn: Callable[[Turn], None], **options: Any) -> None:
        asked.append({"jobs": [job.label for job in jobs], **options})
        for number in range(options["effort"].rounds):
            for job in range(len(jobs)):
                reference_us = tuple(float(50 - 2 * place - number) for place in range(10))
                times_s = (0.5 + job, *[1.0 + job] * (options["effort"].steps - 1))
                on_turn(Turn(job=job, round=number, steps_s=times_s, reference_us=reference_us, traces=()))

    monkeypatch.setattr(run_module, "train_jobs", train)
    told: list[tuple[int, int, str]] = []
    with Database.open(tmp_path / "bench.db", create=True) as database:
        report = validate_run(
            database, config, Estimator.load(make_bundle()), keys_of, RunOptions(),
            lambda *done: told.append(done),
        )  # fmt: skip
        steps, runs = database.records(MeasuredStep), database.run_list()
        predictions = database.records(Prediction)
    usual = {"jobs": ["1-1-1", "2-1-1"], "seed": 3, "device": "cpu", "threads": 1, "timeout_s": 300.0}
    assert asked == [usual | {"effort": TrainingEffort(rounds=2, warm_up_steps=1, steps=10)}] * 3
    assert told == [(place, 12, ("1-1-1", "2-1-1")[(place - 1) % 2]) for place in range(1, 13)]
    assert sorted(step.options["repetition"] for step in steps) == [1, 1, 2, 2, 3, 3]
    for step in steps:
        assert (len(step.repetitions_s), step.options["rounds"], step.framework) == (
            20,
            2,
            "torch.distributed",
        )
        assert step.reference_us == 33.0  # of 31 to 50 the third: the second tenth begins
        assert step.options["layer_counts"] == ([3] if step.pp == 1 else [2, 1])
        assert (step.options["gpus_per_node"], step.schedule, step.recomputation) == (step.pp, "1F1B", False)
        assert step.min_s == step.pp - 0.5
    assert {(run.command, run.conditions["processes_per_node"]) for run in runs} == {
        ("validate run", 1),
        ("validate run", 2),
    }
    assert {one.timeline for one in predictions} == {"schedule", "closed form"}
    assert {one.statistic for one in predictions} == {"quiet_us"}
    for one in predictions:
        assert one.low_s is not None
        assert one.low_s < one.predicted_s < (one.high_s or 0.0)
    assert [len(job.steps) for job in report.jobs] == [3, 3]
    assert report.same_hardware is False


def test_steps_are_stored_under_the_software_of_their_number_of_processes(
    config: RunConfig, make_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differing(processes: int) -> Fingerprints:
        keys = keys_of(processes)
        return replace(keys, software=replace(keys.software, environment=(f"{processes} of 2 bound",)))

    def train(
        jobs: list[TrainingJob], *, effort: TrainingEffort, on_turn: Callable[[Turn], None], **_: Any
    ) -> None:
        take_turns(len(jobs), effort, on_turn, rounds=effort.rounds)

    monkeypatch.setattr(run_module, "train_jobs", train)
    estimator, options = Estimator.load(make_bundle()), RunOptions(repetitions=1, steps=2)
    with Database.open(tmp_path / "bench.db", create=True) as database:
        validate_run(database, config, estimator, differing, options)
        stored = {run.conditions["processes_per_node"]: run.software_id for run in database.run_list()}
        assert stored == {processes: differing(processes).software.digest for processes in (1, 2)}
        monkeypatch.setattr(run_module, "train_jobs", None)  # never called
        validate_run(database, config, estimator, differing, options)
        with pytest.raises(TypeError):  # of more steps
            validate_run(database, config, estimator, differing, RunOptions(repetitions=1, steps=4))
        with pytest.raises(TypeError):  # other software
            validate_run(database, config, estimator, keys_of, options)


def test_degrees_of_contexts_and_experts_are_stored_where_there_are_any(
    make_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SMALL.replace("rounds = 2", "rounds = 1")
    text = (
        text[: text.index("[[runs]]")]
        + "pp = 1\n"
        + '[[runs]]\n[[runs]]\ncp = 2\ncontext_exchange = "all_to_all"\n'
    )
    config = load(tmp_path, text)
    monkeypatch.setattr(
        run_module,
        "train_jobs",
        lambda jobs, *, effort, on_turn, **_: take_turns(len(jobs), effort, on_turn, rounds=effort.rounds),
    )
    options = RunOptions(repetitions=1, steps=2)
    with Database.open(tmp_path / "bench.db", create=True) as database:
        report = validate_run(database, config, Estimator.load(make_bundle()), keys_of, options)
        monkeypatch.setattr(run_module, "train_jobs", None)
        validate_run(database, config, Estimator.load(make_bundle()), keys_of, options)  # found again
    [alone], [pair] = (job.steps for job in report.jobs)
    assert not {"cp", "ep", "expert_imbalance", "context_exchange"} & alone.options.keys()
    assert (pair.options["cp"], pair.options["context_exchange"]) == (2, "all_to_all")
    assert not {"ep", "expert_imbalance"} & pair.options.keys()


def test_numbers_that_are_not_given_and_the_largest(tmp_path: Path) -> None:
    usual = load(tmp_path, SMALL.replace("rounds = 2\nwarm_up_steps = 1\nseed = 3\n", ""))
    assert (usual.rounds, usual.warm_up_steps, usual.seed) == (2, 2, 0)
    largest = load(
        tmp_path, SMALL.replace("seed = 3", f"seed = {2**31 - 1}").replace("steps = 1", "steps = 0")
    )
    assert (largest.warm_up_steps, largest.seed) == (0, 2**31 - 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('model = "tiny"', 'model = "huge"', "run 1: model 'huge' is unknown"),
        ("pp = 2", "pp = 2\nmp = 3", r"run 2: tp is 3, expected a divisor of attention_heads \(4\)"),
        ("pp = 2", "pp = 2\nzero = 3", "run 2: zero is 3, real steps train 0 or 1 only"),
        ("pp = 2", "pp = 1", r"runs holds tiny \(1-1-1\) twice"),
        ("pp = 2", "stages = 2", "run 2: field 'stages' is unknown, known are model"),
        ("rounds = 2", "rounds = 0", "rounds is 0, expected a whole number from 1"),
        ("seed = 3", f"seed = {2**31}", "seed is 2147483648, expected a whole number from 0 to 2147483647"),
        ("seed = 3", "seed = -1", "seed is -1, expected a whole number from 0"),
        ("warm_up_steps = 1", "warm_up_steps = -1", "warm_up_steps is -1, expected a whole number from 0"),
        ("rounds = 2", "turns = 2", "field 'turns' is unknown, known are rounds"),
        ("rounds = 2", "rounds = ", "not TOML"),
    ],
)
def test_a_slip_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SMALL
    with pytest.raises((UsageError, DataError), match=message) as caught:
        load(tmp_path, SMALL.replace(old, new))
    assert "runs.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_layouts_are_chosen_by_name_and_limited_to_the_machine(config: RunConfig) -> None:
    assert [job.label for job in config.only(("2-1-1",)).jobs] == ["2-1-1"]
    with pytest.raises(
        UsageError, match="layout '9-9-9' is not in the configuration, known are 1-1-1, 2-1-1"
    ):
        config.only(("9-9-9",))
    config.check_processes(2, "its cores")
    with pytest.raises(
        UsageError, match=r"tiny \(2-1-1\) needs 2 processes, expected at most 1 \(its cores\)"
    ):
        config.check_processes(1, "its cores")


def test_a_bundle_of_another_element_type_is_refused(
    make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    path = tmp_path / "runs.toml"
    path.write_text(SMALL)
    config = RunConfig.load(path, dtype="bfloat16")
    with pytest.raises(UsageError, match="was measured in float32, but the configuration is in bfloat16"):
        run_module.predict_jobs(config, Estimator.load(make_bundle()))
