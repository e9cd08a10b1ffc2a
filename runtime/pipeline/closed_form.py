"""The paper's closed form: from the stages' times to the time of an update (eq. 7, docs/method.md, A step)."""

import numpy as np

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.pipeline.overlap import Overlap, Times


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Times of steps in µs, float64 [configs]: the whole, and the part until the last pass ends."""

    step_us: Times
    pipeline_us: Times


def closed_forms(
    *,
    forward_us: Times,
    backward_us: Times,
    all_reduce_us: Times,
    update_us: Times,
    micro_batches: int | Times,
    overlap: Overlap | None = None,
) -> StepTimes:
    """Eq. 7 for 1F1B with data parallelism and ZeRO-1, an upper envelope of the exact schedule.

    step = (m − 1 + pp) · (max forward + max backward) + all-reduce of the first stage + max over stages of
    (optimizer + all-gather). Each maximum is taken over the stages independently; all-reduces of the later
    stages hide behind the backward passes of the earlier ones.

    The times are arrays [configs, stages]: forward and backward of one micro-batch with their sends, all-reduce and
    update (optimizer and all-gather) of one step. `micro_batches` is one number, or [configs]. With `overlap` the sum
    contains all added times of first and last passes, and only the exposed part of the first stage's all-reduce.

    Raises:
        UsageError: no stages, or no micro-batches.
    """
    pp = forward_us.shape[1]
    fewest = np.min(micro_batches, initial=1)
    if pp < 1 or fewest < 1:
        raise UsageError(f"a timeline of {pp} stages and {fewest:g} micro-batches, expected 1 or more")
    pipeline_us = (micro_batches - 1 + pp) * (forward_us.max(axis=1) + backward_us.max(axis=1))
    if overlap is not None:
        pipeline_us = pipeline_us + overlap.first_us.sum(axis=1) + overlap.last_us.sum(axis=1)
        pass_us, bucket_us = backward_us[:, :1], all_reduce_us[:, :1] / overlap.buckets[:, :1]
        room_us = np.maximum(pass_us - overlap.link_us[:, :1], 0)
        beside_us = np.minimum(all_reduce_us[:, :1] - bucket_us, room_us - room_us / overlap.buckets[:, :1])
        all_reduce_us = all_reduce_us[:, :1] - beside_us
    return StepTimes(
        step_us=pipeline_us + all_reduce_us[:, 0] + update_us.max(axis=1), pipeline_us=pipeline_us
    )
