"""Collectives that run beside computing, as the engine prices them: beside products, and beside whole passes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.estimate.configurations import Structure
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.pipeline.overlap import Overlap, gathered_together_us, gathered_us, slowed_us
from kernelcast.runtime.step.calls import Beside, Calls
from kernelcast.runtime.step.chunks import StageKind
from kernelcast.runtime.step.decomposition import Decomposition

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Hidden:
    """A tensor-parallel collective beside a product: its part of a micro-batch's piece, its block and pass.

    The part after it is what computes meanwhile; `in_pieces`, `of_weights` and `of_another` as in `Beside`. `is_again`
    where it is one of a forward pass that a backward pass runs again.
    """

    part: int
    block: int
    is_forward: bool
    is_again: bool
    in_pieces: bool
    of_weights: bool
    of_another: bool


def besides(parts: Decomposition) -> tuple[tuple[Beside, ...], ...]:
    """Collectives beside products of every block, in the order of `Decomposition.blocks`."""
    return tuple((*one.beside_forward, *one.beside_backward) for one in parts.passes)


def on_links(parts: Decomposition) -> tuple[list[Calls], list[Calls]]:
    """Collectives of every block's forward and backward pass: those inside nodes, and those between them."""
    inside, between = list[Calls](), list[Calls]()
    for own in parts.passes:
        for calls, beside in ((own.forward, own.beside_forward), (own.backward, own.beside_backward)):
            every = (*calls, *(one for pair in beside for one in pair.collective))
            collectives = [one for one in every if OPERATORS[one.operator].is_collective]
            inside.append(tuple(one for one in collectives if one.shape[1] <= 1))
            between.append(tuple(one for one in collectives if one.shape[1] > 1))
    return inside, between


def hidden(parts: Decomposition, *, first_part: int) -> tuple[Hidden, ...]:
    """The same as parts of a piece, from `first_part` on."""
    forward = [len(one.beside_forward) for one in parts.passes]
    listed = [
        (block, number, len(own) - forward[block], one)
        for block, own in enumerate(besides(parts))
        for number, one in enumerate(own)
    ]
    # What a backward pass runs again of the forward pass stands last.
    return tuple(
        Hidden(
            part=first_part + 2 * place,
            block=block,
            is_forward=number < forward[block],
            is_again=number >= again,
            in_pieces=one.in_pieces,
            of_weights=one.of_weights,
            of_another=one.of_another,
        )
        for place, (block, number, again, one) in enumerate(listed)
    )


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
    """What collectives of an update do to the passes that they run beside (docs/timeline.md).

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
