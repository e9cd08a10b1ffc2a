"""A sample of the occurrences of an operator in a trace."""

import numpy as np

from kernelcast.collector.ingest.kernel_columns import Pieces
from kernelcast.collector.ingest.occurrences import Occurrences, SampleKey
from kernelcast.collector.traces.events import Floats
from kernelcast.store import Kernel, Sample
from kernelcast.store.canonical import rounded
from kernelcast.store.records import Repetitions

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
        repetitions=_repetitions(occurrences, pieces),
        measured_at=measured_at,
        flags=_flags(occurrences, pieces),
    )


def _repetitions(occurrences: Occurrences, pieces: Pieces) -> Repetitions:
    rows, first, start_us = occurrences.rows, occurrences.first, occurrences.start_us
    number = np.repeat(np.arange(len(occurrences)), np.diff(first))
    from_us, duration_us = (
        rounded_us(pieces.start_us[rows] - start_us[number]),
        rounded_us(pieces.duration_us[rows]),
    )
    places = {name: place for place, name in enumerate(sorted({name for _, name in pieces.kinds}))}
    named = np.array([places[name] for _, name in pieces.kinds])[pieces.kind[rows]]
    order = np.lexsort((named, duration_us, pieces.stream[rows], from_us, number))
    columns = (column[order].tolist() for column in (named, from_us, duration_us, pieces.stream[rows]))
    names = list(places)
    return Repetitions(
        rounded_us(occurrences.end_us - start_us).tolist(),
        rounded_us(start_us - start_us[0]).tolist(),
        [Kernel(names[name], *kernel) for name, *kernel in zip(*columns, strict=True)],
        first.tolist(),
    )


def rounded_us(values: Floats) -> Floats:
    """Times in µs in the stored form, as `store.canonical.rounded` does it."""
    thousands = values * 1e3
    found: Floats = np.rint(thousands) / 1e3 + 0.0
    # The product may hide to which side of a half the value lies.
    is_close = np.abs(thousands - np.floor(thousands) - 0.5) <= 1e-6 + 4e-16 * np.abs(thousands)
    is_close |= ~np.isfinite(values)
    found[is_close] = [rounded(value, "time in us") for value in values[is_close].tolist()]
    return found


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
