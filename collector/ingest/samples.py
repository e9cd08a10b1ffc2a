"""A sample of the occurrences of an operator in a trace."""

from collections.abc import Sequence

from kernelcast.collector.ingest.attribute_kernels import Occurrence, SampleKey
from kernelcast.store import Kernel, Repetition, Sample

_IDLE_PERCENT = 10


def sample_of(kind: SampleKey, occurrences: Sequence[Occurrence], measured_at: str | None) -> Sample:
    """Its repetitions are the occurrences, with the flags of times that differ from an operator measured alone."""
    point, direction = kind
    first_us = occurrences[0].start_us
    repetitions = [_repetition(index, occurrence, first_us) for index, occurrence in enumerate(occurrences)]
    return Sample.from_repetitions(
        run_id="",
        operator=point.operator,
        role=point.role,
        direction=direction,
        dtype=point.dtype,
        vector=point.vector,
        variant=point.variant,
        repetitions=repetitions,
        measured_at=measured_at,
        flags=_flags(occurrences),
    )


def _repetition(index: int, occurrence: Occurrence, first_us: float) -> Repetition:
    start_us = occurrence.start_us
    return Repetition(
        index=index,
        time_us=occurrence.end_us - start_us,
        start_us=start_us - first_us,
        kernels=tuple(
            Kernel(
                name=piece.name,
                start_us=piece.start_us - start_us,
                duration_us=piece.duration_us,
                stream=piece.stream,
            )
            for piece in occurrence.pieces
        ),
    )


def _flags(occurrences: Sequence[Occurrence]) -> list[tuple[str, str]]:
    """Flags of times that differ from an operator measured alone."""
    flags = []
    overlapped = sum(occurrence.is_overlapped for occurrence in occurrences)
    if overlapped:
        flags.append(
            ("overlapped", f"{overlapped} of {len(occurrences)} overlapped with kernels of other streams")
        )
    spans_us = sum(occurrence.end_us - occurrence.start_us for occurrence in occurrences)
    busy_us = sum(piece.duration_us for occurrence in occurrences for piece in occurrence.pieces)
    idle_percent = 100 * (1 - busy_us / spans_us)
    if idle_percent >= _IDLE_PERCENT:
        flags.append(("idle", f"{idle_percent:.0f} % of the time none of its kernels ran"))
    return flags
