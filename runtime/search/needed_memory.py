"""Memory that layouts need, without their times."""

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.memory.layouts import largest_stage_bytes
from kernelcast.runtime.memory.stages import architecture_of, on_cpu
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.search.partial_result import Found
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.step.layouts import Layouts

_AT_ONCE = 1 << 13


def needed_bytes(
    bundle: Bundle, model: ModelConfig, layouts: Layouts, *, most_bytes: int | None = None
) -> NDArray[np.float64]:
    """What the fullest device of every layout needs, float64 [layouts]; at least one layout.

    Of layouts that need more than `most_bytes` it may be that of a stage that needs more, not of the fullest.
    """
    # Some at a time: each has a row for every stage that can be the fullest.
    parts = (layouts.take(slice(first, first + _AT_ONCE)) for first in range(0, len(layouts), _AT_ONCE))
    needed = [
        largest_stage_bytes(
            model,
            part,
            dtype=bundle.manifest.dtype,
            is_cpu=on_cpu(bundle.manifest.compute),
            architecture=architecture_of(bundle.manifest.compute),
            most_bytes=most_bytes,
        )
        for part in parts
    ]
    return np.concatenate(needed)


def look_for_fitting(bundle: Bundle, question: Question, *, shard: int = 0, shards: int = 1) -> Found:
    """Go through a space, or a part of it, until a layout fits into a device's memory: fewer are counted as
    `out_of_memory` than all. `smallest` is the smallest so far.
    """
    found = Found()
    blocks = question.space.blocks(
        simulated=question.timeline == "simulate", shard=shard, shards=shards, refusals=found.refusals
    )
    for layouts, _ in blocks:
        found.counts.layouts += len(layouts)
        if len(layouts):
            memory = needed_bytes(bundle, question.space.model, layouts)
            found.look_at_memory(layouts, memory)
            found.counts.out_of_memory += (short := int((memory > question.usable_bytes(layouts)).sum()))
            if short < len(layouts):
                break
    return found
