"""Real training steps in real processes: few, small ones; and jobs that fail."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelcast.collector.training import StageTimes, TrainingSteps, check_trainable, train_steps
from kernelcast.runtime import DataError, ModelConfig, Parallelism, UsageError

LAYOUT = Parallelism(pp=2, mp=1, dp=1, micro_batch=1, micro_batches=3)


def workers() -> set[int]:
    """Processes of this user that train here, by what they were started with."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"KERNELCAST_TEST={os.getpid()}".encode() in entry.read_bytes():
                found.add(int(entry.parent.name))
        except OSError:
            continue
    return found - {os.getpid()}


@pytest.fixture(autouse=True)
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers inherit a variable by which the test finds them again."""
    monkeypatch.setenv("KERNELCAST_TEST", str(os.getpid()))


def train(model: ModelConfig, layout: Parallelism = LAYOUT, **changes: Any) -> TrainingSteps:
    stages = {1: (3,), 2: (2, 1)}[layout.pp]
    options = {
        "stage_encoders": stages, "vocabulary_size": 128, "steps": 4, "warm_up_steps": 1, "seed": 7
    }  # fmt: skip
    return train_steps(model, layout, **options | changes)


@pytest.mark.parametrize("pp", [1, 2])
def test_steps_and_components_of_every_stage(model: ModelConfig, pp: int) -> None:
    found = train(model, replace(LAYOUT, pp=pp))
    assert len(found.steps_s) == 4
    assert len(found.stages) == pp
    assert 0 < found.minimum_s <= found.quiet_s <= found.median_s <= max(found.steps_s) < 60
    for stage in found.stages:
        assert stage.forward_s > 0
        assert stage.backward_s > 0
        assert stage.optimizer_s > 0
        # A step is at least what one stage does in it. (Components come from other steps, traced ones.)
        assert stage.forward_s + stage.backward_s < 100 * max(found.steps_s)
    assert workers() == set()


def test_a_crash_is_one_line_and_leaves_nobody(model: ModelConfig) -> None:
    with pytest.raises(DataError) as caught:
        train(model, vocabulary_size=50)  # smaller than the tokens
    message = str(caught.value)
    assert message.startswith("kernelcast.collector.training_worker: exit status 1 on 2 process(es): ")
    assert "IndexError: index out of range" in message
    assert "\n" not in message
    assert workers() == set()


def test_a_timeout_ends_everybody(model: ModelConfig) -> None:
    start = time.monotonic()
    with pytest.raises(DataError, match=r"training_worker: no result after 4 s on 2 process\(es\)$"):
        train(model, steps=10**9, timeout_s=4)
    assert time.monotonic() - start < 40
    assert workers() == set()


@pytest.mark.parametrize(
    ("model_changes", "layout_changes", "message"),
    [
        ({}, {"mp": 2}, "mp is 2 and dp is 1, real steps train mp = dp = 1 only"),
        ({}, {"dp": 2}, "mp is 1 and dp is 2, real steps train mp = dp = 1 only"),
        ({}, {"micro_batches": 1}, "micro_batches is 1, real steps over 2 pipeline stages need 2 or more"),
        ({"kv_heads": 2}, {}, "model tiny: kv_heads is 2"),
        ({"attention": "fused_softmax"}, {}, "model tiny: attention is 'fused_softmax'"),
    ],
)
def test_what_is_not_trained_here(
    model: ModelConfig, model_changes: dict[str, Any], layout_changes: dict[str, Any], message: str
) -> None:
    changed, layout = replace(model, **model_changes), replace(LAYOUT, **layout_changes)
    with pytest.raises(UsageError, match=message):
        check_trainable(changed, layout)
    with pytest.raises(UsageError, match=message):
        train(changed, layout)


def test_statistics_of_steps() -> None:
    times = StageTimes(forward_s=3.0, backward_s=5.0, optimizer_s=7.0)
    one = TrainingSteps(steps_s=(4.0, 1.0, 3.0, 2.0), stages=(times,))
    assert (one.minimum_s, one.median_s) == (1.0, 3.0)
    assert one.quiet_s == pytest.approx(1.3)  # 10th percentile
    other = TrainingSteps(
        steps_s=(0.5,), stages=(StageTimes(forward_s=2.0, backward_s=6.0, optimizer_s=7.0),)
    )
    both = one.joined(other)
    assert both.steps_s == (4.0, 1.0, 3.0, 2.0, 0.5)
    assert both.stages == (StageTimes(forward_s=2.0, backward_s=5.0, optimizer_s=7.0),)
