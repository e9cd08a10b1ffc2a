"""A sample of the occurrences of an operator in a trace."""

from collections.abc import Iterator

import numpy as np

from kernelcast.collector.ingest.kernel_columns import Pieces
from kernelcast.collector.ingest.occurrences import Occurrences, SampleKey
from kernelcast.store import Kernel, Repetition, Sample

_IDLE_PERCENT = 10


def sample_of(kind: SampleKey, occurrences: Occurrences, pieces: Pieces, measured_at: str | None) -> Sample:
    """Its repetitions are the occurrences, with the flags of times that differ from an operator measured alone."""
    point, direction = kind
    return Sample.from_repetitions(
        run_id="",
        operator=point.operator,
        role=point.role,
        direction=direction,
        dtype=point.dtype,
        vector=point.vector,
        variant=point.variant,
        repetitions=list(_repetitions(occurrences, pieces)),
        measured_at=measured_at,
        flags=_flags(occurrences, pieces),
    )


def _repetitions(occurrences: Occurrences, pieces: Pieces) -> Iterator[Repetition]:
    rows, first = occurrences.rows, occurrences.first
    start_us = occurrences.start_us
    columns = (
        [pieces.kinds[number][1] for number in pieces.kind[rows].tolist()],
        (pieces.start_us[rows] - np.repeat(start_us, np.diff(first))).tolist(),
        pieces.duration_us[rows].tolist(),
        pieces.stream[rows].tolist(),
    )
    kernels = [
        Kernel(name=name, start_us=from_us, duration_us=duration_us, stream=stream)
        for name, from_us, duration_us, stream in zip(*columns, strict=True)
    ]
    spans = (occurrences.end_us - start_us).tolist(), (start_us - start_us[0]).tolist()
    borders = zip(first[:-1].tolist(), first[1:].tolist(), strict=True)
    for index, (time_us, from_us, (begin, end)) in enumerate(zip(*spans, borders, strict=True)):
        yield Repetition(index=index, time_us=time_us, start_us=from_us, kernels=tuple(kernels[begin:end]))


def _flags(occurrences: Occurrences, pieces: Pieces) -> list[tuple[str, str]]:
    """Flags of times that differ from an operator measured alone."""
    flags = []
    overlapped = int(occurrences.is_overlapped.sum())
    if overlapped:
        flags.append(
            ("overlapped", f"{overlapped} of {len(occurrences)} overlapped with kernels of other streams")
        )
    spans_us = float((occurrences.end_us - occurrences.start_us).sum())
    busy_us = float(pieces.duration_us[occurrences.rows].sum())
    idle_percent = 100 * (1 - busy_us / spans_us)
    if idle_percent >= _IDLE_PERCENT:
        flags.append(("idle", f"{idle_percent:.0f} % of the time none of its kernels ran"))
    return flags
