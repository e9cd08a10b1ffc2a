"""Pipelines of any shape and durations, for tests that simulate them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from kernelcast.runtime.pipeline.durations import Durations, Overlap

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")
relaxed = settings(deadline=None, max_examples=150)
few = settings(deadline=None, max_examples=40)


@dataclass(frozen=True)
class Question:
    """A schedule's shape and durations; `arguments` are passed to `simulate` and `step_timeline`."""

    schedule: str
    pp: int
    micro_batches: int
    virtual_stages: int
    durations: Durations

    @property
    def arguments(self) -> dict[str, Any]:
        return {
            "schedule": self.schedule,
            "pp": self.pp,
            "micro_batches": self.micro_batches,
            "virtual_stages": self.virtual_stages,
            "durations": self.durations,
        }


def random_durations(
    seed: int,
    *,
    schedule: str,
    pp: int,
    virtual_stages: int,
    configs: int,
    style: str,
    overlaps: bool = False,
) -> Durations:
    """Random times; `whole` has many ties and zeros, `alike` nearly equal stages, `wild` six orders of magnitude."""
    rng = np.random.default_rng(seed)

    def draw(columns: int) -> np.ndarray[Any, Any]:
        if style == "whole":
            return rng.integers(0, 4, (configs, columns)).astype(np.float64)
        if style == "alike":
            return 100 + rng.random((configs, 1)) * 10 + rng.choice((0.0, 0.0, 0.37), (configs, columns))
        return np.asarray(np.exp(rng.uniform(-2, 12, (configs, columns))))

    chunks = pp * virtual_stages
    split = schedule == "zero_bubble"
    scale = 0.1 if style == "alike" else 1.0
    forward_us, backward_us = draw(chunks), draw(chunks)
    weight_us = draw(chunks) if split else np.zeros((configs, chunks))
    # A pass uses its links for no longer than it lasts.
    shortest_us = (weight_us if split else backward_us).reshape(configs, virtual_stages, pp).min(axis=1)
    overlap = Overlap(
        first_us=draw(chunks) * scale,
        last_us=draw(chunks) * scale,
        buckets=rng.integers(1, 9, (configs, pp)).astype(np.float64),
        link_us=np.minimum(draw(pp), shortest_us),
    )
    return Durations(
        forward_us=forward_us,
        backward_us=backward_us,
        weight_us=weight_us,
        send_forward_us=draw(chunks) * scale,
        send_backward_us=draw(chunks) * scale,
        all_reduce_us=draw(pp),
        update_us=draw(pp),
        overlap=overlap if overlaps else None,
    )


@st.composite
def questions(
    draw: st.DrawFn,
    *,
    schedules: tuple[str, ...] = SCHEDULES,
    most_stages: int = 7,
    most_micro_batches: int = 24,
    configs: int = 1,
    overlaps: bool = True,
) -> Question:
    schedule = draw(st.sampled_from(schedules))
    interleaved = schedule == "interleaved"
    pp = draw(st.integers(2 if schedule in ("interleaved", "zero_bubble") else 1, most_stages))
    micro_batches = draw(st.integers(1, most_micro_batches))
    virtual_stages = 1
    if interleaved:
        virtual_stages = draw(st.integers(1, 3))
        micro_batches = pp * -(-micro_batches // pp)
    durations = random_durations(
        draw(st.integers(0, 2**32)),
        schedule=schedule,
        pp=pp,
        virtual_stages=virtual_stages,
        configs=configs,
        style=draw(st.sampled_from(("whole", "alike", "wild"))),
        overlaps=overlaps and draw(st.booleans()),
    )
    return Question(schedule, pp, micro_batches, virtual_stages, durations)


def uniform(
    pp: int, forward: float, backward: float, weight: float = 0.0, *, virtual_stages: int = 1
) -> Durations:
    """Stages that all take the same, without communication; the times are a device's, of all its chunks."""
    chunks = pp * virtual_stages
    none = np.zeros((1, chunks))
    return Durations(
        forward_us=none + forward / virtual_stages,
        backward_us=none + backward / virtual_stages,
        weight_us=none + weight / virtual_stages,
        send_forward_us=none,
        send_backward_us=none,
        all_reduce_us=np.zeros((1, pp)),
        update_us=np.zeros((1, pp)),
    )
