"""What a reader found: samples made of others' values, and how they enter a database, all in one transaction."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Self, Unpack

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.hardware.element_types import ELEMENT_BYTES
from kernelcast.runtime.operators import Direction, Operator
from kernelcast.store.connection import transaction
from kernelcast.store.database import Database
from kernelcast.store.doubts import count_doubts, flagged
from kernelcast.store.importers.description import Description
from kernelcast.store.importers.parquet_table import ParquetTable
from kernelcast.store.importers.text_file import Malformed, Skipped, TextFile
from kernelcast.store.records import Repetition, Sample, SampleDetails
from kernelcast.store.runs import Run
from kernelcast.store.sqlite_errors import reported
from kernelcast.store.write import write_run, write_samples

MAX_SAMPLES = 2_000_000
"""Of one import: it is held in memory, so that a malformed last line can still stop all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples of one run, with what they were measured on."""

    run: Run
    compute: ComputeFingerprint
    fabric: FabricFingerprint | None
    software: SoftwareFingerprint
    samples: Sequence[Sample]


class Parsed(Skipped):
    """What `files` files hold; `strict`: none of their lines may be malformed."""

    def __init__(self, *, strict: bool, files: int = 0) -> None:
        super().__init__(strict=strict)
        self.files = files
        self.batches: list[Batch] = []

    def add_run(
        self,
        command: str,
        file: TextFile | ParquetTable,
        description: Description,
        samples: Callable[[str], Iterable[Sample]],
        *,
        fabric: FabricFingerprint | None = None,
    ) -> None:
        """Add what was measured on one device (and fabric), as described; `samples` makes them of their run's id.

        Raises:
            DataError: as `add`.
        """
        run = description.run(command=command, file_name=file.name, file_digest=file.digest, fabric=fabric)
        self.add(
            Batch(
                run=run,
                compute=description.compute(),
                fabric=fabric,
                software=description.versions(),
                samples=tuple(samples(run.id)),
            )
        )

    def add(self, batch: Batch) -> None:
        """Add a batch. Samples that are equal in everything are one row of a database, and counted as such.

        Raises:
            DataError: more than `MAX_SAMPLES` in all.
        """
        distinct = tuple(dict.fromkeys(batch.samples))
        if repeated := len(batch.samples) - len(distinct):
            self.left_out["equal to another row of their file (same workload, same time)"] += repeated
        if distinct:
            self.batches.append(replace(batch, samples=distinct))
        if self.sample_count > MAX_SAMPLES:
            name = batch.run.source.name
            raise DataError(
                f"{name}: more than {MAX_SAMPLES:,} samples, the limit for one import; import in parts"
            )

    def keep_variants(self, names: Sequence[str]) -> None:
        """Of operators (per direction and dtype) measured in one of the ways `names`, keep no other way.

        Raises:
            UsageError: nothing was measured in one of these ways; names those that were.
        """
        groups: dict[tuple[str, Direction, str], set[str]] = {}
        for batch in self.batches:
            for s in batch.samples:
                groups.setdefault((s.operator, s.direction, s.dtype), set()).add(s.variant)
        found = {variant for own in groups.values() for variant in own}
        if missing := [name for name in names if name not in found]:
            known = "; ".join(sorted(filter(None, found))) or "none"
            raise UsageError(f"variant: nothing was measured {missing[0]!r:.60}, found {known}")
        kept = []
        for batch in self.batches:
            chosen = []
            for sample in batch.samples:
                ways = groups[sample.operator, sample.direction, sample.dtype]
                if sample.variant in names or ways.isdisjoint(names):
                    chosen.append(sample)
                else:
                    way = sample.variant or "in no named way"
                    self.left_out[f"of {sample.operator} measured {way}: not of the chosen variants"] += 1
            if chosen:
                kept.append(replace(batch, samples=tuple(chosen)))
        self.batches = kept

    @property
    def sample_count(self) -> int:
        """Samples in all batches."""
        return sum(len(batch.samples) for batch in self.batches)

    def checked(self, paths: Sequence[Path]) -> Self:
        """Itself, if there is anything to store.

        Raises:
            DataError: no sample at all; names the first malformed line, or what was left out.
        """
        if self.sample_count:
            return self
        what = ", ".join(map(str, paths))
        if self.problems:
            count = len(self.problems)
            raise DataError(f"{self.problems[0]} ({count} malformed line(s) and no usable one in {what})")
        reasons = "; ".join(f"{count} rows {reason}" for reason, count in self.left_out.items())
        raise DataError(f"{what}: holds no usable row{': ' + reasons if reasons else ''}")


def checked_direction(operator: Operator, text: str) -> Direction:
    """The direction called `text`; empty means the only one that the operator has.

    Raises:
        Malformed: the operator has no such direction, or several and none was named.
    """
    expected = " or ".join(operator.costs)
    if not text and len(operator.costs) == 1:
        return next(iter(operator.costs))
    if text not in operator.costs:
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
    operator: Operator,
    direction: Direction,
    dtype: str,
    vector: tuple[int, ...],
    *,
    time_us: float | None,
    statistic: str,
    repetition_count: int = 0,
    repetitions_us: Sequence[float] = (),
    **details: Unpack[SampleDetails],
) -> Sample:
    """A sample with a time; with `repetitions_us` its statistics follow from them instead.

    Raises:
        Malformed: a value that no sample can have.
    """
    try:
        if repetitions_us:
            return Sample.from_repetitions(
                operator=operator.name,
                direction=direction,
                dtype=dtype,
                vector=vector,
                repetitions=[Repetition(index=i, time_us=t) for i, t in enumerate(repetitions_us)],
                **details,
            )
        return Sample(
            operator=operator.name,
            direction=direction,
            dtype=dtype,
            vector=vector,
            time_us=time_us,
            statistic=statistic,
            repetition_count=repetition_count,
            flops=operator.flops(direction, vector, details.get("variant", "")),
            moved_bytes=operator.moved_bytes(direction, vector, ELEMENT_BYTES[dtype]),
            **details,  # type: ignore[arg-type]
        )
    except (UsageError, OverflowError) as error:
        raise Malformed(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """How many samples were new, how many the database held already, and how many are doubtful (`count_doubts`)."""

    added: int
    already_there: int
    doubts: Mapping[str, int]


def store_parsed(database: Database, parsed: Parsed) -> Imported:
    """Store every batch in one transaction: all of it or nothing. Repeating it adds nothing.

    Samples that cannot be right are flagged (doubts.py).

    Raises:
        DataError: the database cannot be written.
    """
    added = 0
    batches = _flagged(parsed.batches)
    with reported(database.path), transaction(database.connection):
        for batch in batches:
            write_run(database.connection, batch.run, batch.compute, batch.fabric, batch.software)
            added += write_samples(database.connection, batch.samples)
    doubts = count_doubts(sample.flags for batch in batches for sample in batch.samples)
    return Imported(added=added, already_there=parsed.sample_count - added, doubts=doubts)


def _flagged(batches: Sequence[Batch]) -> list[Batch]:
    """Batches with doubtful samples flagged; those of one device and fabric are looked at together."""
    together: dict[tuple[ComputeFingerprint, FabricFingerprint | None], list[int]] = {}
    for number, batch in enumerate(batches):
        together.setdefault((batch.compute, batch.fabric), []).append(number)
    found = list(batches)
    for (compute, fabric), numbers in together.items():
        samples = iter(
            flagged([sample for number in numbers for sample in batches[number].samples], compute, fabric)
        )
        for number in numbers:
            own = tuple(islice(samples, len(batches[number].samples)))
            found[number] = replace(batches[number], samples=own)
    return found
