"""Encoders per pipeline stage: eq. 3–5 with the even spread of the published runs (docs/method.md, A step)."""

from kernelcast.runtime.errors import UsageError

BLOCKS_BEFORE = 2
"""Blocks before the encoders, on the first stage."""
BLOCKS_AFTER = 3
"""Blocks after the encoders, on the last stage."""


def partition(encoders: int, pp: int) -> tuple[int, ...]:
    """Encoders of each of `pp` stages; they sum to `encoders`.

    The n + 5 blocks of a pipeline are spread evenly, the remainder going to the earliest stages; 2 blocks
    of the first stage and 3 of the last are not encoders. A last stage without encoders is allowed: it
    still has norm, output projection and loss. Layouts in which the last stage could not hold even those
    are refused, that is more than (n + 5) // 3 stages; all other stages then have at least one encoder.

    Raises:
        UsageError: more stages than that, or fewer than one.
    """
    blocks = encoders + BLOCKS_BEFORE + BLOCKS_AFTER
    # A single stage has all blocks; of several, the last has the fewest, blocks // pp.
    most = max(1, blocks // BLOCKS_AFTER)
    if not 1 <= pp <= most:
        raise UsageError(
            f"pp is {pp}, expected from 1 to {most}: {encoders} encoders make {blocks} blocks, "
            f"{BLOCKS_AFTER} of them on the last stage"
        )
    even, remainder = divmod(blocks, pp)
    stages = [even + (stage < remainder) for stage in range(pp)]
    stages[0] -= BLOCKS_BEFORE
    stages[-1] -= BLOCKS_AFTER
    return tuple(stages)
