"""What a reader found, and how it enters a database: all of it in one transaction."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.errors import DataError
from kernelcast.store.connection import transaction
from kernelcast.store.database import Database
from kernelcast.store.importers.problems import Problem
from kernelcast.store.records import Sample
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


@dataclass(slots=True, kw_only=True)
class Parsed:
    """What files hold. `left_out` counts well-formed rows that have no place here, by reason."""

    batches: list[Batch] = field(default_factory=list)
    problems: Sequence[Problem] = ()
    left_out: Counter[str] = field(default_factory=Counter)
    files: int = 0

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

    @property
    def sample_count(self) -> int:
        """Samples in all batches."""
        return sum(len(batch.samples) for batch in self.batches)

    def check_something(self, what: str) -> None:
        """Check that there is anything to store.

        Raises:
            DataError: no sample at all; names the first malformed line, or what was left out.
        """
        if self.sample_count:
            return
        if self.problems:
            count = len(self.problems)
            raise DataError(f"{self.problems[0]} ({count} malformed line(s) and no usable one in {what})")
        reasons = "; ".join(f"{count} rows {reason}" for reason, count in self.left_out.items())
        raise DataError(f"{what}: holds no usable row{': ' + reasons if reasons else ''}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """How many samples were new, and how many the database held already."""

    added: int
    already_there: int


def store_parsed(database: Database, parsed: Parsed) -> Imported:
    """Store every batch in one transaction: all of it or nothing. Repeating it adds nothing.

    Raises:
        DataError: the database cannot be written.
    """
    added = 0
    with reported(database.path), transaction(database.connection):
        for batch in parsed.batches:
            write_run(database.connection, batch.run, batch.compute, batch.fabric, batch.software)
            added += write_samples(database.connection, batch.samples)
    return Imported(added=added, already_there=parsed.sample_count - added)
