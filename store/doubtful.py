"""Doubtful samples of a whole database, counted by source, device and flag."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from kernelcast.store.database import Database
from kernelcast.store.doubts import NEVER_TRAIN, find_doubts
from kernelcast.store.read import SampleRow
from kernelcast.store.sqlite_errors import reading


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtfulSamples:
    """`count` of `samples` of an operator and direction, measured on one device by one source, have a `flag`.

    `example` is what was found in one of them.
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
    """Samples that cannot be right (doubts.py), flagged when they were stored or not; the most numerous first.

    Raises:
        DataError: a row is damaged, or names one that is not there.
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
            # Files of one source are many: its name without what tells them apart would not say more.
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
