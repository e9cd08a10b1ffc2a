"""Samples that a reader made from files, and storing them in one transaction."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.hardware.devices import ELEMENT_BYTES, Load
from kernelcast.runtime.operators import OPERATORS, Direction, Operator, Vector
from kernelcast.store.database import Database
from kernelcast.store.doubts import Doubt, count_doubts, flagged
from kernelcast.store.importers.description import Description, published
from kernelcast.store.importers.tables import Cells, Malformed, Skipped, SourceFile, Table
from kernelcast.store.records import Repetition, Sample
from kernelcast.store.runs import MeasuredRun

MAX_SAMPLES = 2_000_000
"""Of one import, which is held in memory, so that a malformed last line can stop all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRow:
    """A usable row: an operator at a workload, with a time or repetitions (µs). Rows of one run have equal `of_run`."""

    line: int
    operator: str
    direction: Direction = Direction.ONCE
    dtype: str
    vector: Vector
    time_us: float | None
    statistic: str
    role: str = ""
    variant: str = ""
    repetition_count: int = 0
    repetitions_us: Sequence[float] = ()
    load: Load = Load.NOT_STATED
    power_w: float | None = None
    measured_at: str | None = None
    flags: tuple[Doubt, ...] = ()
    of_run: tuple[Any, ...] = ()

    def sample(self, run_id: str) -> Sample:
        """The sample of this row; Malformed where a value is not allowed in one."""
        law = OPERATORS[self.operator]
        known = {"run_id": run_id} | {name: getattr(self, name) for name in _OF_SAMPLE}
        try:
            if self.repetitions_us:
                times = enumerate(self.repetitions_us)
                repetitions = [Repetition(index=index, time_us=time_us) for index, time_us in times]
                return Sample.from_repetitions(repetitions=repetitions, **known)
            return Sample(
                time_us=self.time_us,
                statistic=self.statistic,
                repetition_count=self.repetition_count,
                flops=law.flops(self.direction, self.vector, self.variant),
                moved_bytes=law.moved_bytes(self.direction, self.vector, ELEMENT_BYTES[self.dtype]),
                **known,
            )
        except (UsageError, OverflowError) as error:
            raise Malformed(str(error)) from error


_OF_SAMPLE = (
    "operator", "direction", "dtype", "vector", "role", "variant", "load", "power_w", "measured_at", "flags",
)  # fmt: skip


class Parsed(Skipped):
    """The content of `files` files; with `strict`, a malformed line is an error."""

    def __init__(self, *, strict: bool, files: int = 0) -> None:
        super().__init__(strict=strict)
        self.files = files
        self.runs: list[MeasuredRun] = []

    def read(self, table: Table, convert: Callable[[Cells], Iterable[TimedRow]]) -> list[TimedRow]:
        """The rows that `convert` makes of the table's; rows that it refuses are skipped, errors as `malformed`."""
        found: list[TimedRow] = []
        for cells in table.rows(self):
            with self.row(table.path, cells.line):
                found += list(convert(cells))  # all of a row, or nothing
        return found

    def add_run(
        self,
        command: str,
        file: SourceFile,
        description: Description,
        rows: Iterable[TimedRow],
        *,
        fabric: FabricFingerprint | None = None,
    ) -> None:
        """Add the rows of one device and fabric; errors as `add`."""
        measured, samples = description.run(command, file, fabric), []
        for row in rows:
            with self.row(file.path, row.line):
                samples.append(row.sample(measured.run.id))
        self.add(replace(measured, samples=samples))

    def add(self, measured: MeasuredRun) -> None:
        """Add a run; equal samples are one row, and counted once. DataError for more than `MAX_SAMPLES` in all."""
        distinct = tuple(dict.fromkeys(measured.samples))
        if repeated := len(measured.samples) - len(distinct):
            self.left_out["equal to another row of their file (same workload, same time)"] += repeated
        if distinct:
            self.runs.append(replace(measured, samples=distinct))
        if self.sample_count > MAX_SAMPLES:
            name = measured.run.source.name
            raise DataError(
                f"{name}: more than {MAX_SAMPLES:,} samples, the limit for one import; import in parts"
            )

    def keep_variants(self, names: Sequence[str]) -> None:
        """Keep only the variants `names` of operators (per direction and dtype) that have any of them.

        UsageError where no sample has one of these variants; it lists the variants that exist.
        """
        groups: dict[tuple[str, Direction, str], set[str]] = {}
        for measured in self.runs:
            for s in measured.samples:
                groups.setdefault((s.operator, s.direction, s.dtype), set()).add(s.variant)
        found = {variant for own in groups.values() for variant in own}
        if missing := [name for name in names if name not in found]:
            known = "; ".join(sorted(filter(None, found))) or "none"
            raise UsageError(f"variant: nothing was measured {missing[0]!r:.60}, found {known}")
        kept = []
        for measured in self.runs:
            chosen = []
            for sample in measured.samples:
                ways = groups[sample.operator, sample.direction, sample.dtype]
                if sample.variant in names or ways.isdisjoint(names):
                    chosen.append(sample)
                else:
                    way = sample.variant or "in no named way"
                    self.left_out[f"of {sample.operator} measured {way}: not a chosen variant"] += 1
            if chosen:
                kept.append(replace(measured, samples=tuple(chosen)))
        self.runs = kept

    @property
    def sample_count(self) -> int:
        return sum(len(measured.samples) for measured in self.runs)

    def checked(self, paths: Sequence[Path]) -> Self:
        """Itself, if it has samples; else a DataError names the first malformed line, or the rows left out."""
        if self.sample_count:
            return self
        what = ", ".join(map(str, paths))
        if self.problems:
            count = len(self.problems)
            raise DataError(f"{self.problems[0]} ({count} malformed line(s) and no usable one in {what})")
        reasons = "; ".join(f"{count} rows {reason}" for reason, count in self.left_out.items())
        raise DataError(f"{what}: holds no usable row{': ' + reasons if reasons else ''}")


def read_files(
    read_one: Callable[[Path, Description, Parsed], None],
    repository: str,
    paths: Sequence[Path],
    *,
    described: Description | None = None,
    commit: str = "",
    strict: bool = False,
) -> Parsed:
    """Read files that do not depend on each other, from `described` hardware and software.

    They were published in a `commit` of one of `REPOSITORIES`, unless that is empty.

    Raises:
        DataError: a file does not have the source's format, no row is usable, or, with `strict`, a line is malformed.
        UsageError: neither files nor description name the device or the devices per node; `commit` is no commit.
    """
    parsed, description = Parsed(strict=strict, files=len(paths)), described or Description()
    if repository:
        description = description.over(published(repository, commit))
    for path in paths:
        read_one(path, description, parsed)
    return parsed.checked(paths)


def checked_direction(operator: Operator, text: str) -> Direction:
    """The direction `text`; if empty, the operator's only direction. Malformed if it has no such direction."""
    expected = " or ".join(operator.costs)
    if not text and len(operator.costs) == 1:
        return next(iter(operator.costs))
    if text not in operator.costs:
        raise Malformed(f"direction: found {text!r:.40}, {operator.name} has {expected}")
    return Direction(text)


def checked_dtype(text: str) -> str:
    """`text`, which is torch's name of a dtype, else Malformed."""
    if text not in ELEMENT_BYTES:
        raise Malformed(f"dtype: found {text!r:.40}, expected one of {', '.join(ELEMENT_BYTES)}")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Numbers of new samples, of samples that existed, and of doubtful samples (`count_doubts`)."""

    added: int
    already_there: int
    doubts: Mapping[str, int]


def store_parsed(database: Database, parsed: Parsed) -> Imported:
    """Store all runs in one transaction. Repeating it adds nothing; DataError where the database cannot be written.

    Doubtful samples are flagged (doubts.py); samples of one device and fabric are compared.
    """
    together: dict[tuple[ComputeFingerprint, FabricFingerprint | None], list[MeasuredRun]] = {}
    for measured in parsed.runs:
        together.setdefault((measured.compute, measured.fabric), []).append(measured)
    runs = []
    for (compute, fabric), of_device in together.items():
        samples = iter(flagged([sample for one in of_device for sample in one.samples], compute, fabric))
        runs += [replace(one, samples=tuple(islice(samples, len(one.samples)))) for one in of_device]
    added = database.add_runs(runs)
    doubts = count_doubts(sample.flags for measured in runs for sample in measured.samples)
    return Imported(added=added, already_there=parsed.sample_count - added, doubts=doubts)
