"""Predicted next to measured: what is compared, and what is stored."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelcast.collector.machine.probe import probe
from kernelcast.collector.training.job import TrainingJob, Turn
from kernelcast.collector.training.job_result import JobResult
from kernelcast.demo import loop
from kernelcast.demo.config import DemoConfig
from kernelcast.demo.loop import Comparison, predict_layouts, store_comparisons, train_layouts
from kernelcast.runtime import Estimate
from kernelcast.store import Database, MeasuredStep, Prediction

CONFIG = """
plan = "quick"
seed = 1
[model]
name = "tiny"
hidden_size = 8
sequence_length = 4
attention_heads = 2
layers = 3
vocabulary_size = 100
[job]
micro_batch = 1
micro_batches = 2
pipeline_stages = [1, 2]
[steps]
rounds = 2
warm_up = 1
timed = 3
"""


@pytest.fixture
def config(tmp_path: Path) -> DemoConfig:
    path = tmp_path / "demo.toml"
    path.write_text(CONFIG)
    return DemoConfig.load(path)


def trace(stage: int, *, scale: float) -> dict[str, Any]:
    """What one rank's trace says: 0.1 s forward, 0.2 s backward and 0.01 s of optimizer, times `scale`."""
    return {
        "stage": stage,
        "steps": [1e6],
        "operators": [["adam/last_stage", "once", True, [[1e4 * scale]]]],
        "forward": [[1e5 * scale, 0]],
        "backward": [[2e5 * scale, 0]],
        **{name: [] for name in ("loss", "layer_forward", "layer_backward", "messages")},
        "idle": {},
    }


def measured(estimate: Estimate, *steps_s: float) -> JobResult:
    job = TrainingJob(model=estimate.model, parallelism=estimate.parallelism)
    traces = tuple(trace(stage, scale=stage + 1.0) for stage in range(job.parallelism.pp))
    turn = Turn(job=0, round=0, steps_s=steps_s, reference_us=(1.0,), traces=traces)
    return JobResult(job=job, turns=(turn,))


def test_the_error_is_predicted_against_quiet(config: DemoConfig, make_bundle: Callable[..., Path]) -> None:
    one, two = predict_layouts(config, make_bundle())
    comparison = Comparison(estimate=two, steps=measured(two, *[0.004] * 9, 0.5))
    assert comparison.label == "2-1-1"
    assert comparison.error == pytest.approx(two.step_time_s / 0.004 - 1)
    components = {name: measured_s for name, _, measured_s in comparison.components()}
    # The slowest stage's; what a trace does not single out has no measured time.
    assert components["Stage_Fwd_Max"] == pytest.approx(0.2)
    assert components["Stage_Bwd_Max"] == pytest.approx(0.4)
    assert components["Max_Update"] == pytest.approx(0.02)
    assert components["PP_P2P"] is None
    alone = Comparison(estimate=one, steps=measured(one, 1.0)).components()
    assert "PP_P2P" not in {name for name, *_ in alone}


def test_layouts_take_turns(
    config: DemoConfig, make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    estimates = predict_layouts(config, make_bundle())

    def train(jobs: Sequence[TrainingJob], **options: Any) -> list[Turn]:
        # What was predicted is what is trained: the stages and the padded vocabulary.
        assert [job.chunk_layers for job in jobs] == [(3,), (2, 1)]
        assert [job.vocabulary_size for job in jobs] == [128, 128]
        assert (options["effort"].rounds, options["effort"].steps, options["seed"]) == (2, 3, 1)
        turns = [
            Turn(job=job, round=turn, steps_s=(float(job + 1), float(turn + 5)), reference_us=())
            for turn in range(2)
            for job in range(2)
        ]
        for turn in turns:
            options["on_turn"](turn)
        return turns

    monkeypatch.setattr(loop, "train_jobs", train)
    seen: list[tuple[int, int, str]] = []
    comparisons = train_layouts(config, estimates, lambda *progress: seen.append(progress))
    assert [c.steps.steps_s for c in comparisons] == [(1.0, 5.0, 1.0, 6.0), (2.0, 5.0, 2.0, 6.0)]
    assert seen == [(1, 4, "1-1-1"), (2, 4, "2-1-1"), (3, 4, "1-1-1"), (4, 4, "2-1-1")]


def test_steps_and_predictions_are_stored(
    config: DemoConfig, make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    estimates = predict_layouts(config, make_bundle())
    comparisons = [
        Comparison(estimate=estimate, steps=measured(estimate, 0.5, 0.25, 0.75)) for estimate in estimates
    ]
    keys = probe(torch.device("cpu"), threads=1)
    with Database.open(tmp_path / "bench.db", create=True) as database:
        store_comparisons(database, keys, comparisons)
        steps, predictions = database.records(MeasuredStep), database.records(Prediction)
        (run,) = database.run_list()
    assert (run.command, run.compute_id, run.fabric_id) == ("demo", keys.compute.digest, keys.fabric.digest)
    assert {(s.pp, s.tp, s.dp, s.micro_batch, s.micro_batches) for s in steps} == {
        (1, 1, 1, 1, 2),
        (2, 1, 1, 1, 2),
    }
    for step in steps:
        assert step.repetitions_s == (0.5, 0.25, 0.75)
        assert (step.min_s, step.p10_s, step.median_s) == (0.25, pytest.approx(0.3), 0.5)
        assert step.components_s["Stage_Fwd_Max"] == pytest.approx(0.1 * step.pp)
        assert step.model["hidden_size"] == 8
        (prediction,) = [p for p in predictions if p.step_id == step.id]
        assert prediction.predicted_s == pytest.approx(estimates[step.pp - 1].step_time_s)
        assert prediction.statistic == "quiet_us"
