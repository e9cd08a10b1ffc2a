"""Doubtful samples of a database, counted by source, device and flag."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from kernelcast.store.database import Database
from kernelcast.store.doubts import NEVER_TRAIN, find_doubts
from kernelcast.store.read import SampleRow
from kernelcast.store.sqlite_errors import reading


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtfulSamples:
    """`count` of the `samples` of an operator and direction, of one device and source, have a `flag`.

    `example` is the detail of the first such flag.
    """

    source: str
    hardware: str
    operator: str
    direction: str
    flag: str
    count: int
    samples: int
    example: str

    def __str__(self) -> str:
        return (
            f"{self.flag}: {self.count:,} of {self.samples:,} samples of {self.operator} ({self.direction}) on "
            f"{self.hardware}, from {self.source} ({self.example})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def doubtful_samples(database: Database) -> list[DoubtfulSamples]:
    """Doubtful samples (doubts.py), flagged by `find_doubts` now or when they were stored; highest counts first.

    Raises:
        DataError: a row is damaged, or refers to a missing row.
    """
    with reading(database.path):
        return _doubtful_samples(database)


def _doubtful_samples(database: Database) -> list[DoubtfulSamples]:
    hardware = {row.id: row for row in database.hardware_list()}
    fabrics = {row.id: row.fingerprint for row in database.fabric_list()}
    sources = {run.id: run.source.name for run in database.run_list()}
    measured: dict[tuple[str, str | None], list[SampleRow]] = {}
    for sample in database.read_samples():
        measured.setdefault((sample.compute_id, sample.fabric_id), []).append(sample)
    counts: Counter[tuple[str, ...]] = Counter()
    totals: Counter[tuple[str, ...]] = Counter()
    examples: dict[tuple[str, ...], str] = {}
    for (compute_id, fabric_id), samples in measured.items():
        device = hardware[compute_id]
        doubts = find_doubts(samples, device.fingerprint, fabrics.get(fabric_id) if fabric_id else None)
        for position, sample in enumerate(samples):
            stored = [doubt for doubt in sample.flags if doubt[0] in NEVER_TRAIN]
            kind = (sources[sample.run_id], device.description, sample.operator, sample.direction.value)
            totals[kind] += 1
            for flag, detail in stored or [doubts[position]] if position in doubts or stored else []:
                counts[*kind, flag] += 1
                examples.setdefault((*kind, flag), detail)
    return [
        DoubtfulSamples(
            source=source,
            hardware=name,
            operator=operator,
            direction=direction,
            flag=flag,
            count=count,
            samples=totals[source, name, operator, direction],
            example=examples[source, name, operator, direction, flag],
        )
        for (source, name, operator, direction, flag), count in sorted(
            counts.items(), key=lambda one: (-one[1], one[0])
        )
    ]
