"""From the times of its blocks to the time of one chunk's passes (docs/method.md, A step).

Every time is a float or a float64 array [configurations]: an estimate asks for one configuration or for its
random draws, a search for all that share a structure.
"""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTimes:
    """Times of one kind of block in µs, for one micro-batch: `weight_us` of `backward_us` makes gradients of weights
    where the schedule splits them; `gather_us` is ZeRO-3's, `scatter_us` 2's and 3's, else 0; passes use the same links
    for `forward_link_us`, `backward_link_us`.
    """

    forward_us: Times
    backward_us: Times
    weight_us: Times
    gather_us: Times
    scatter_us: Times
    forward_link_us: Times
    backward_link_us: Times

    def take(self, rows: NDArray[np.intp]) -> "BlockTimes":
        """Times of the configurations at `rows`."""
        return BlockTimes(**{name: getattr(self, name)[rows] for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTimes:
    """Times of a chunk in µs for a micro-batch, without sends; with zero-bubble backward passes are cut in two."""

    forward_us: Times
    backward_us: Times
    weight_us: Times


def chunk_times(
    runs: Sequence[tuple[BlockTimes, int]],
    *,
    sharded: bool,
    split: bool,
    exposed_share: float = 0.0,
    forward_passes: int = 1,
) -> ChunkTimes:
    """Passes through the blocks of a chunk: `runs` of equal blocks in the order of the model, perhaps empty ones.

    With `split`, the schedule cuts the backward pass into input and weight gradients. With `sharded`
    (ZeRO-2 and 3) communication overlaps computation: while a block computes, the parameters of the next one
    are gathered and the gradients of the one before are scattered. Collectives take multiprocessors and memory from
    the overlapped compute, which takes `exposed_share` of their time longer. The longer of compute and communication
    counts; a block's own collectives on the same links wait for neither, and nothing else is sent at the same time.
    The first gather and the last scatter overlap with nothing. A block's forward time has `forward_passes`, and
    each gathers.
    """
    blocks = [(block, count) for block, count in runs if count]
    if not blocks:
        nothing = np.zeros_like(np.asarray(runs[0][0].forward_us))
        return ChunkTimes(forward_us=nothing, backward_us=nothing, weight_us=nothing)
    if not sharded:
        return ChunkTimes(
            forward_us=sum_of([count * block.forward_us for block, count in blocks]),
            backward_us=sum_of([count * (block.backward_us - block.weight_us) for block, count in blocks]),
            weight_us=sum_of([count * block.weight_us for block, count in blocks]),
        )
    return _prefetched(blocks, split=split, exposed_share=exposed_share, gathers=forward_passes)


def exposed_us(network_us: Times, compute_us: Times, exposed_share: float) -> Times:
    """Time that a collective adds to the compute it overlaps with: max(c + e · n, n) − c."""
    return np.maximum(exposed_share * network_us, network_us - compute_us)


def share_in_layer(exposed_share: float) -> float:
    """The exposed share of collectives that overlap products of their own layer: at least half, unless none is exposed.

    They have those products alone to hide under. Half is what FSDP exposed in LLM Foundry's steps (docs/stacks.md).
    """
    return max(0.5, exposed_share) if exposed_share else 0.0


def sum_of(terms: Sequence[Times]) -> Times:
    """The sum from left to right."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _prefetched(
    blocks: list[tuple[BlockTimes, int]], *, split: bool, exposed_share: float, gathers: int
) -> ChunkTimes:
    overlapped = partial(_overlapped, exposed_share=exposed_share)
    nothing = np.zeros_like(np.asarray(blocks[0][0].forward_us))
    forward = [
        _Run(b.forward_us, b.forward_link_us, gathers * b.gather_us, None, count) for b, count in blocks
    ]
    if not split:
        backward = [
            _Run(b.backward_us, b.backward_link_us, b.gather_us, b.scatter_us, count)
            for b, count in reversed(blocks)
        ]
        forward_us = overlapped(forward)
        return ChunkTimes(forward_us=forward_us, backward_us=overlapped(backward), weight_us=nothing)
    # Split: the weights are needed for the input part, their gradients come from the weight part.
    inputs = [
        _Run(b.backward_us - b.weight_us, b.backward_link_us, b.gather_us, None, count)
        for b, count in reversed(blocks)
    ]
    weights = [_Run(b.weight_us, nothing, None, b.scatter_us, count) for b, count in reversed(blocks)]
    return ChunkTimes(
        forward_us=overlapped(forward), backward_us=overlapped(inputs), weight_us=overlapped(weights)
    )


class _Run(NamedTuple):
    """A pass through equal blocks one after the other: what one takes, fetches and gives away, and how many."""

    compute_us: Times
    link_us: Times
    fetch_us: Times | None
    give_us: Times | None
    blocks: int


def _overlapped(runs: list[_Run], *, exposed_share: float) -> Times:
    """Σ max(c + e · n, n + l), the first fetch and the last give: c a block's pass, l its own collectives on the same
    links, n the next block's fetch and the last one's give, e the exposed share. Only ends of a run differ.
    """
    nothing = np.zeros_like(np.asarray(runs[0].compute_us))
    kinds = [index for index, run in enumerate(runs) for _ in range(min(run.blocks, 4))]
    triples = zip([None, *kinds[:-1]], kinds, [*kinds[1:], None], strict=True)
    first, last = runs[kinds[0]], runs[kinds[-1]]
    total = nothing if first.fetch_us is None else first.fetch_us
    for (before, kind, after), repeated in groupby(triples):
        # A block between two of its own kind represents those beyond the fourth, which `kinds` leaves out.
        surplus = max(0, runs[kind].blocks - 4) if before == kind == after else 0
        fetch_us = None if after is None else runs[after].fetch_us
        give_us = None if before is None else runs[before].give_us
        network_us = (nothing if fetch_us is None else fetch_us) + (nothing if give_us is None else give_us)
        total = total + (len(list(repeated)) + surplus) * np.maximum(
            runs[kind].compute_us + exposed_share * network_us,
            network_us + np.minimum(runs[kind].link_us, runs[kind].compute_us),
        )
    return total if last.give_us is None else total + last.give_us
