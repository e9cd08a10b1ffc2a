"""Schedules whose stages have two chunks, the second in reverse order: ZB-V, DualPipe and half of it, DualPipe-V."""

from collections import deque
from collections.abc import Iterator

from kernelcast.runtime.pipeline.passes import Kind, Pass


def zb_v(stage: int, pp: int, micro_batches: int, virtual_stages: int) -> Iterator[Pass]:
    """ZB-V in its fixed order (arXiv 2401.10241, section 6; torch's ScheduleZBVZeroBubble).

    If forward pass, input gradients and weight gradients take the same time, no stage waits between its first and its
    last pass, with at most 2 pp chunk passes in flight, the memory of 1F1B. The order is made for 2 pp − 1
    micro-batches or more; with fewer, the missing ones are left out.
    """
    chunks = stage, 2 * pp - 1 - stage
    done = {(kind, side): 0 for kind in Kind for side in (0, 1)}

    def run(side: int, *kinds: Kind) -> Iterator[Pass]:
        for kind in kinds:
            micro_batch = done[kind, side]
            done[kind, side] += 1
            if micro_batch < micro_batches:
                yield Pass(kind, chunks[side], micro_batch)

    forward, backward, weight = Kind
    planned = max(2 * pp - 1, micro_batches)
    for _ in range(2 * (pp - stage) - 1):
        yield from run(0, forward)
    for _ in range(stage):
        yield from run(1, forward)
        yield from run(0, forward)
    for _ in range(pp - stage):
        yield from run(1, forward, backward, weight)
    while done[forward, 1] < planned:
        if done[forward, 0] < planned:
            yield from run(0, forward)
        yield from run(0, backward, weight)
        yield from run(1, forward, backward, weight)
    for _ in range(stage):
        yield from run(0, backward)
        yield from run(1, backward)
    for _ in range(pp - stage):
        yield from run(0, backward, weight)
    for side in (1, 0):
        while done[weight, side] < planned:
            yield from run(side, weight)


def dualpipe_v(stage: int, pp: int, micro_batches: int, virtual_stages: int) -> Iterator[Pass]:
    """DualPipe-V: a DualPipe cut in half, whose two directions are the two halves of one model (`_folded`)."""
    return _folded(pp, stage, micro_batches, ((stage, 0), (2 * pp - 1 - stage, 0)))


def dualpipe(stage: int, pp: int, micro_batches: int, virtual_stages: int) -> Iterator[Pass]:
    """DualPipe (arXiv 2412.19437, section 3.2.1): half of the micro-batches enter at either end.

    Chunks from pp on are the second copy of the model, which begins on the last stage; the second half of the
    micro-batches runs through it. A stage and its mirror image do the same.
    """
    half = micro_batches // 2
    own, other = (stage, 0), (2 * pp - 1 - stage, half)
    near = min(stage, pp - 1 - stage)
    return _folded(pp // 2, near, half, (own, other) if stage < pp // 2 else (other, own))


def _folded(
    stages: int, stage: int, micro_batches: int, sides: tuple[tuple[int, int], tuple[int, int]]
) -> Iterator[Pass]:
    """The order of a stage in one of DualPipe's halves, as its authors run it (github.com/deepseek-ai/DualPipe).

    `sides` are the chunk and the first micro-batch of what comes in from this half's end (side 0), and of what comes
    back (side 1); `micro_batches` go through each. Some of the backward passes are split in two, so that weight
    gradients fill what would be waiting.
    """
    done = {(kind, side): 0 for kind in Kind for side in (0, 1)}
    late: deque[int] = deque()

    def one(kind: Kind, side: int, *, joined: bool = False) -> Pass:
        chunk, first = sides[side]
        done[kind, side] += 1
        return Pass(kind, chunk, first + done[kind, side] - 1, joined)

    def forward(side: int) -> Iterator[Pass]:
        yield one(Kind.FORWARD, side)

    def backward(side: int, *, split: bool = False) -> Iterator[Pass]:
        yield one(Kind.BACKWARD, side, joined=not split)
        if split:
            late.append(side)
        else:
            yield one(Kind.WEIGHT, side)

    def weight() -> Iterator[Pass]:
        yield one(Kind.WEIGHT, late.popleft())

    def pair(side: int) -> Iterator[Pass]:
        yield one(Kind.FORWARD, side, joined=True)
        yield from backward(1 - side)

    later = stages - 1 - stage
    for _ in range(2 * later):
        yield from forward(0)
    for _ in range(stage + 1):
        yield from forward(0)
        yield from forward(1)
    for _ in range(later):
        yield from backward(1, split=True)
        yield from weight()
        yield from forward(1)
    for index in range(micro_batches - 2 * stages + stage + 1):
        if index == 0 and not later:
            # Not together: the backward pass reads a tensor that this stage has just computed.
            yield from forward(0)
            yield from backward(1)
        else:
            yield from pair(0)
        yield from pair(1)
    for _ in range(later):
        yield from backward(1)
        yield from pair(1)
    turns = 2 * (stage + 1)
    for turn in range(turns):
        # The second half of them is split.
        yield from backward(1 - turn % 2, split=turn >= turns // 2)
    for _ in range(later):
        yield from weight()
        yield from backward(0, split=True)
    while late:
        yield from weight()
