"""Steps that ran exactly as predicted, to be changed in one thing at a time."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime import Cluster, Estimate, Estimator, ModelConfig, Parallelism
from kernelcast.validate.compare.rows import predicted_step
from kernelcast.validate.compare.traced_steps import TracedSteps, Work

MODEL = ModelConfig(
    name="tiny",
    hidden_size=64,
    sequence_length=32,
    attention_heads=4,
    layers=2,
    vocabulary_size=256,
    norm="layer_norm",
    rotary=False,
    learned_positions=32,
)
STEPS = ("ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3")
IDLE = {"idle_other_stream": 0.0, "idle_dependency": 0.0, "idle_unknown": 0.0}


@pytest.fixture
def estimate(make_bundle: Callable[..., Path]) -> Estimate:
    """Two data-parallel devices; every operator takes 10 µs forward, 20 µs backward, 5 µs where it has one time."""
    layout = Parallelism(pp=1, tp=1, dp=2, micro_batch=2, micro_batches=1, zero=0)
    return Estimator.load(make_bundle()).predict(
        model=MODEL, parallelism=layout, cluster=Cluster(gpus_per_node=2)
    )


Change = Callable[[Work], Work | None]


@pytest.fixture
def ran(estimate: Estimate) -> Callable[..., TracedSteps]:
    """Steps of two ranks that took the predicted times; `change` replaces or drops pieces of work.

    `late_s` is how long the host of a rank was late in every step, `more` is further work.
    """

    def make(
        change: Change = lambda work: work,
        late_s: dict[int, float] | None = None,
        more: tuple[Work, ...] = (),
    ) -> TracedSteps:
        work = [
            changed
            for rank in (0, 1)
            for step in STEPS
            for one in _as_predicted(estimate, rank, step)
            if (changed := change(one)) is not None
        ] + [replace(one, rank=rank, step=step) for one in more for rank in (0, 1) for step in STEPS]
        parts = {
            rank: {
                step: {
                    "compute": _sum(work, rank, step, "compute"),
                    "exposed_communication": _sum(work, rank, step, "communication"),
                    "memory": 0.0,
                    "idle_host": (late_s or {}).get(rank, 0.0),
                    **IDLE,
                }
                for step in STEPS
            }
            for rank in (0, 1)
        }
        return TracedSteps(
            run_id="run", hardware="device", world_size=2, parts_s=parts, work=tuple(work), gaps=()
        )

    return make


def _sum(work: list[Work], rank: int, step: str, class_: str) -> float:
    return sum(one.time_s for one in work if (one.rank, one.step, one.class_) == (rank, step, class_))


def _as_predicted(estimate: Estimate, rank: int, step: str) -> list[Work]:
    return [
        Work(
            rank=rank,
            step=step,
            class_="communication" if calls.pass_ == "once" else "compute",
            pass_=calls.pass_,
            operator="" if calls.pass_ == "once" else calls.operator,
            role="",
            vector=() if calls.pass_ == "once" else calls.vector,
            variant="",
            host_operator="",
            collective=calls.operator if calls.pass_ == "once" else "",
            message_bytes=calls.message_bytes(4) if calls.pass_ == "once" else None,
            time_s=calls.predicted_s,
            launches=calls.calls,
        )
        for calls in predicted_step(estimate, (0, 1)).calls
    ]
