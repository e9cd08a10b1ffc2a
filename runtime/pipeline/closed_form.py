"""The pipeline's timeline: from the stages' times to the time of an update (eq. 7, docs/method.md, A step)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.pipeline.durations import Times


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Times of a stage in µs: forward and backward per micro-batch, with its sends; the rest per update."""

    forward_us: float
    backward_us: float
    all_reduce_us: float
    optimizer_us: float
    all_gather_us: float

    @property
    def update_us(self) -> float:
        """Optimizer and the all-gather of the updated parameters."""
        return self.optimizer_us + self.all_gather_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A step in µs and the terms of its sum: `pipeline_us`, `all_reduce_us` and `max_update_us`."""

    step_us: float
    pipeline_us: float
    max_forward_us: float
    max_backward_us: float
    all_reduce_us: float
    max_update_us: float
    slowest_update_stage: int


def closed_form(stages: Sequence[StageTimes], micro_batches: int) -> Timeline:
    """The paper's eq. 7 for 1F1B with data parallelism and ZeRO-1, an upper envelope of the exact schedule.

    step = (m − 1 + pp) · (max forward + max backward) + all-reduce of the first stage + max over stages of
    (optimizer + all-gather). The maxima are over the stages, each for itself; all-reduces of the later
    stages hide behind the backward passes of the earlier ones.

    Raises:
        UsageError: no stages, or no micro-batches.
    """
    if not stages or micro_batches < 1:
        raise UsageError(
            f"a timeline of {len(stages)} stages and {micro_batches} micro-batches, expected 1 or more"
        )
    max_forward_us = max(stage.forward_us for stage in stages)
    max_backward_us = max(stage.backward_us for stage in stages)
    pipeline_us = (micro_batches - 1 + len(stages)) * (max_forward_us + max_backward_us)
    slowest = max(range(len(stages)), key=lambda index: stages[index].update_us)
    all_reduce_us, max_update_us = stages[0].all_reduce_us, stages[slowest].update_us
    return Timeline(
        step_us=pipeline_us + all_reduce_us + max_update_us,
        pipeline_us=pipeline_us,
        max_forward_us=max_forward_us,
        max_backward_us=max_backward_us,
        all_reduce_us=all_reduce_us,
        max_update_us=max_update_us,
        slowest_update_stage=slowest,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForms:
    """`Timeline` of many configurations: every array is [configs]."""

    step_us: Times
    pipeline_us: Times
    max_forward_us: Times
    max_backward_us: Times
    all_reduce_us: Times
    max_update_us: Times


def closed_forms(
    *,
    forward_us: Times,
    backward_us: Times,
    all_reduce_us: Times,
    update_us: Times,
    micro_batches: int | Times,
) -> ClosedForms:
    """Eq. 7 for many configurations, to the bit what `closed_form` answers for each.

    The times are arrays [configs, stages] as in `StageTimes` (forward and backward with their sends);
    `micro_batches` is one number, or [configs].

    Raises:
        UsageError: no stages, or no micro-batches.
    """
    pp = forward_us.shape[1]
    fewest = np.min(micro_batches, initial=1)
    if pp < 1 or fewest < 1:
        raise UsageError(f"a timeline of {pp} stages and {fewest} micro-batches, expected 1 or more")
    max_forward_us, max_backward_us = forward_us.max(axis=1), backward_us.max(axis=1)
    pipeline_us = (micro_batches - 1 + pp) * (max_forward_us + max_backward_us)
    first_us, max_update_us = all_reduce_us[:, 0], update_us.max(axis=1)
    return ClosedForms(
        step_us=pipeline_us + first_us + max_update_us,
        pipeline_us=pipeline_us,
        max_forward_us=max_forward_us,
        max_backward_us=max_backward_us,
        all_reduce_us=first_us,
        max_update_us=max_update_us,
    )
