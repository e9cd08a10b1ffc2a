"""Collectives of an update that overlap passes: gradients combined under the last backward pass, parameters gathered
under the next step's first forward pass.
"""

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.estimate.configurations import Structure
from kernelcast.runtime.pipeline.overlap import Overlap, gathered_together_us, gathered_us, slowed_us
from kernelcast.runtime.step.chunks import StageKind
from kernelcast.runtime.step.decomposition import Decomposition

Times = NDArray[np.float64]


def overlapping_buckets(
    parts: Decomposition, stages: tuple[StageKind, ...], chunks_per_stage: int
) -> list[int]:
    """Buckets of one chunk of every stage; a stage's parameters count as evenly spread over its chunks."""
    of_kind = {
        stage: parts.data_parallel.buckets(-(-parts.parameters(stage) // chunks_per_stage))
        for stage in dict.fromkeys(stages)
    }
    return [of_kind[stage] for stage in stages]


def update_overlap(
    structure: Structure,
    *,
    forward_us: Times,
    send_us: Times,
    completing_us: Times,
    links_us: tuple[Times, Times],
    gradients_us: Times | None,
    gather_us: Times | None,
    buckets: Times,
    exposed_share: float,
) -> Overlap:
    """Effect of the update's collectives on the passes that they overlap (docs/timeline.md).

    `forward_us`, `send_us` after it and `completing_us`, of the passes that complete gradients, are [configs, chunks],
    and so are both of `links_us`, how long these passes use the same links for their own collectives. `gradients_us`
    and `gather_us`, None where they overlap with nothing, and `buckets` are [configs, stages]. The chunks of a stage
    share its collectives evenly.
    """
    of_chunk, nothing = structure.per_chunk(buckets), np.zeros_like(forward_us)

    def shared(of_stage: Times) -> Times:
        return structure.per_chunk(of_stage / structure.chunks_per_stage)

    first_us = last_us = nothing
    if gather_us is not None and structure.virtual_stages > 1:
        stages = buckets.shape[1]
        first_us = gathered_together_us(
            forward_us, send_us, shared(gather_us), of_chunk, exposed_share, links_us[0], stages
        )
    elif gather_us is not None:
        first_us = gathered_us(forward_us, shared(gather_us), of_chunk, exposed_share, links_us[0])
    if gradients_us is not None:
        last_us = slowed_us(completing_us, shared(gradients_us), of_chunk, exposed_share, links_us[1])
    return Overlap(
        first_us=first_us,
        last_us=last_us,
        buckets=np.ones_like(buckets) if gradients_us is None else buckets,
        # The chunks of a stage are nearly alike.
        link_us=structure.per_stage(links_us[1]) / structure.virtual_stages,
    )
