"""Pipeline schedules as data: what they split, where their chunks lie, which numbers they and a simulation allow."""

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.request.fields import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleKind:
    """What a schedule is, apart from the order of its passes.

    - `splits`: gradients of weights are passes of their own, at least at times;
    - `is_v`: the second chunk of every stage lies in reverse order: stage 0 has the first and the last one;
    - `virtual_stages`: chunks that a stage always has of one copy of the model, 0 for any number;
    - `copies` of the model in one pipeline: of two, one runs from the first stage to the last, one back;
    - `pairs`: a forward and a backward pass run together, each computing while the other one communicates;
    - `least_pp`, `pp_multiple`: stages from which on it exists, and what divides them;
    - `least_rounds`: the fewest micro-batches, as a multiple of pp; their number is a multiple of
      `micro_batch_multiple`, 0 for pp.
    """

    splits: bool = False
    is_v: bool = False
    virtual_stages: int = 1
    copies: int = 1
    pairs: bool = False
    least_pp: int = 1
    pp_multiple: int = 1
    least_rounds: int = 0
    micro_batch_multiple: int = 1


SCHEDULE_KINDS: dict[Schedule, ScheduleKind] = {
    "gpipe": ScheduleKind(),
    "1f1b": ScheduleKind(),
    # As Megatron-LM demands: micro-batches go through the chunks of a device in groups of pp.
    "interleaved": ScheduleKind(virtual_stages=0, least_pp=2, micro_batch_multiple=0),
    "zero_bubble": ScheduleKind(splits=True, least_pp=2),
    "zb_v": ScheduleKind(splits=True, is_v=True, virtual_stages=2, least_pp=2),
    "dualpipe": ScheduleKind(
        splits=True,
        is_v=True,
        copies=2,
        pairs=True,
        least_pp=2,
        pp_multiple=2,
        least_rounds=2,
        micro_batch_multiple=2,
    ),
    "dualpipe_v": ScheduleKind(
        splits=True, is_v=True, virtual_stages=2, pairs=True, least_pp=2, least_rounds=2
    ),
}

USUAL_SCHEDULES: tuple[Schedule, ...] = tuple(name for name, kind in SCHEDULE_KINDS.items() if not kind.is_v)
"""Schedules that a search tries by default: few frameworks run V-shaped ones."""


def check_schedule(schedule: Schedule, pp: int, micro_batches: int, virtual_stages: int) -> None:
    """Check that a schedule exists for these numbers, each at least 1; else UsageError, which names the number."""
    kind, words = SCHEDULE_KINDS[schedule], f"with schedule {schedule}"
    multiple, least = kind.micro_batch_multiple or pp, kind.least_rounds * pp
    rounds = f"{least} ({kind.least_rounds} · pp)"
    of = str(multiple) if kind.micro_batch_multiple else f"pp ({pp})"
    has_chunks = kind.virtual_stages in (0, virtual_stages)
    for name, found, holds, expected in (
        ("virtual_stages", virtual_stages, has_chunks, f"{kind.virtual_stages} {words}"),
        ("pp", pp, pp >= kind.least_pp, f"{kind.least_pp} or more {words}"),
        ("pp", pp, not pp % kind.pp_multiple, f"a multiple of {kind.pp_multiple} {words}"),
        ("micro_batches", micro_batches, not micro_batches % multiple, f"a multiple of {of} {words}"),
        ("micro_batches", micro_batches, micro_batches >= least, f"{rounds} or more {words}"),
    ):
        if not holds:
            raise UsageError(field=name, found=found, expected=expected)


def stage_of(schedule: Schedule, chunk: int, pp: int) -> int:
    """The stage that a chunk is on; chunks of a second copy of the model follow the first copy's.

    >>> [stage_of("interleaved", chunk, 2) for chunk in range(4)], [stage_of("zb_v", chunk, 2) for chunk in range(4)]
    ([0, 1, 0, 1], [0, 1, 1, 0])
    """
    turn, place = divmod(chunk, pp)
    return pp - 1 - place if SCHEDULE_KINDS[schedule].is_v and turn % 2 else place


def chunks_on(schedule: Schedule, pp: int, virtual_stages: int) -> tuple[tuple[int, ...], ...]:
    """The chunks on every stage, rising."""
    chunks = range(pp * virtual_stages * SCHEDULE_KINDS[schedule].copies)
    return tuple(
        tuple(chunk for chunk in chunks if stage_of(schedule, chunk, pp) == stage) for stage in range(pp)
    )


MAX_SIMULATED_CHUNKS = 1024
MAX_SIMULATED_PASSES = 1_000_000
"""Forward passes of a step. Most schedules repeat early and take no time for more; some repeat late or never."""


def check_simulated(chunks: int, micro_batches: int) -> None:
    """UsageError where a simulation of a layout would take more than seconds: too many chunks, or passes."""
    passes = micro_batches * chunks
    for name, product, found, most in (
        ("pp", "pp · virtual_stages", chunks, MAX_SIMULATED_CHUNKS),
        ("micro_batches", "micro_batches · pp · virtual_stages", passes, MAX_SIMULATED_PASSES),
    ):
        if found > most:
            expected = f"at most {most} with timeline simulate"
            raise UsageError(field=name, subject=product, found=found, expected=expected)
