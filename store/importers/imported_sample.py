"""A sample of somebody else's measuring: a time and how it was formed, mostly without repetitions."""

from collections.abc import Sequence

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.operators import Direction, Operator
from kernelcast.store.importers.problems import Malformed
from kernelcast.store.records import ELEMENT_BYTES, Repetition, Sample


def checked_direction(operator: Operator, text: str) -> Direction:
    """The direction called `text`; empty means the only one that the operator has.

    Raises:
        Malformed: the operator has no such direction, or several and none was named.
    """
    expected = " or ".join(operator.directions)
    if not text and len(operator.directions) == 1:
        return operator.directions[0]
    if text not in operator.directions:
        raise Malformed(f"direction: found {text!r:.40}, {operator.name} has {expected}")
    return Direction(text)


def checked_dtype(text: str) -> str:
    """`text` if it is a dtype by torch's name.

    Raises:
        Malformed: it is none.
    """
    if text not in ELEMENT_BYTES:
        raise Malformed(f"dtype: found {text!r:.40}, expected one of {', '.join(ELEMENT_BYTES)}")
    return text


def imported_sample(
    *,
    run_id: str,
    operator: Operator,
    direction: Direction,
    dtype: str,
    vector: tuple[int, ...],
    time_us: float | None,
    statistic: str,
    repetition_count: int = 0,
    repetitions_us: Sequence[float] = (),
    variant: str = "",
    measured_at: str | None = None,
) -> Sample:
    """A sample with a time; with `repetitions_us` its statistics follow from them instead.

    Raises:
        Malformed: a value that no sample can have.
    """
    try:
        if repetitions_us:
            return Sample.from_repetitions(
                run_id=run_id,
                operator=operator.name,
                direction=direction,
                dtype=dtype,
                vector=vector,
                repetitions=[Repetition(index=i, time_us=t) for i, t in enumerate(repetitions_us)],
                measured_at=measured_at,
                variant=variant,
            )
        return Sample(
            run_id=run_id,
            operator=operator.name,
            direction=direction,
            dtype=dtype,
            vector=vector,
            variant=variant,
            time_us=time_us,
            statistic=statistic,
            repetition_count=repetition_count,
            flops=operator.flops(direction, vector),
            moved_bytes=operator.moved_bytes(direction, vector, ELEMENT_BYTES[dtype]),
            measured_at=measured_at,
        )
    except (UsageError, OverflowError) as error:
        raise Malformed(str(error)) from error
