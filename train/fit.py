"""`train`: one regressor per operator, direction and level of processes per node, all of them in one bundle."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Self, Unpack

from kernelcast.runtime import DataError, UsageError
from kernelcast.runtime.bundle.file import Bundle, write_bundle
from kernelcast.runtime.bundle.fingerprint import DESCRIBED, FabricFingerprint
from kernelcast.runtime.bundle.manifest import UNKNOWN_MOMENT, Manifest, Peak, RegressorEntry
from kernelcast.runtime.bundle.regressor_entry import STATISTICS
from kernelcast.runtime.errors import error_context
from kernelcast.runtime.output_file import check_writable
from kernelcast.runtime.workers import available_cores, each
from kernelcast.store import Database, PredictorRecord, SampleRow, dataset_digest
from kernelcast.store.database_file import check_file, read_header
from kernelcast.store.database_file import check_writable as check_database_writable
from kernelcast.store.doubts import count_doubts
from kernelcast.store.schema import SCHEMA_VERSION
from kernelcast.train.dataset import Table, TableKey, tables
from kernelcast.train.fit_table import FitTask, Fitted, fit_table, table_digest
from kernelcast.train.levels import base_of
from kernelcast.train.loads import ByLoad, LoadRatio, by_load
from kernelcast.train.notes import Note, notes_on, notes_on_flags
from kernelcast.train.prior import Prior, correcting_points
from kernelcast.train.prior_choice import choose, corrections, parts_of
from kernelcast.train.scope import Scope, Wanted, measured_peaks
from kernelcast.train.screening import Screened, screen, statistic_of_all
from kernelcast.train.selection import Selected, why_unfit

DEFAULT_SEED = 20
LARGEST_SEED = 2**32 - 1
_REASONS_SHOWN = 3
# A process takes seconds to start, and as long as a dozen small tables to fit.
_FEWEST_PARALLEL_ROWS = 2000
_FEWEST_PARALLEL_TABLES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The written bundle: its manifest and digest, and what was left out (`skipped`).

    `selections` hold the rows of the fitted regressors with their held-out predictions. `notes` are on doubtful rows,
    `doubts` counts impossible ones among `samples`, `without_quiet` samples without a quiet time. `load_ratios` compare
    sustained load with bursts wherever both were measured.
    """

    path: Path
    manifest: Manifest
    skipped: tuple[Note, ...]
    digest: str
    selections: tuple[Selected, ...] = ()
    notes: tuple[Note, ...] = ()
    doubts: Mapping[str, int] = field(default_factory=lambda: count_doubts([]))
    samples: int = 0
    without_quiet: int = 0
    prior: Prior | None = None
    load_ratios: tuple[LoadRatio, ...] = ()


def train_bundle(
    database: Database,
    output: Path,
    *,
    statistic: str = "",
    seed: int = DEFAULT_SEED,
    earlier: Bundle | None = None,
    prior: Bundle | None = None,
    jobs: int = 1,
    on_progress: Callable[[int, int, str], None] = lambda done, total, operator: None,
    **wanted: Unpack[Wanted],
) -> Trained:
    """Fit, export and bundle the measurements that `wanted` names (`Scope.choose`).

    Without `statistic`, the quiet time where every sample has one, else the middle five. Same rows and seed, same
    bytes, whatever `jobs` (processes that fit at once; 0: one per core, where that pays); the bundle is dated by its
    newest measurement. An existing output is replaced once everything else has worked. The database may be open for
    reading only: it is opened again at the end to record the errors.

    Regressors of `earlier` that were fitted on the same rows in the same way are taken over, with the same bytes.
    `prior` is a bundle of another device: operators with few rows get its regressors corrected by them, operators
    without rows its regressors scaled by the peaks of both devices (prior.py). A single row is then enough.

    Raises:
        UsageError: several dtypes or fingerprints to choose from, none that matches, or another wrong argument.
        DataError: no usable rows, an export that differs from its regressor, or the bundle or its records cannot be
            written.
    """
    _check(database, output, statistic, seed, jobs)
    scope = Scope.choose(database, **wanted)
    data = _TrainingData.of(scope, statistic or _statistic(scope, prior), prior, where=str(database.path))
    # A database that cannot be written must be noticed before the long fits, not minutes later.
    check_database_writable(database.path)
    fitted = _fit_all(data.tasks(seed), earlier, jobs or _worthwhile_jobs(data.fit), on_progress)
    entries = tuple(one.entry for one in fitted)
    if data.prior is not None:
        entries = choose(data.prior, entries, data.corrected, statistic=data.statistic)
    used = data.used_samples()
    manifest = _manifest(database, data, used, entries, prior, seed)
    models = {one.entry.file: one.model for one in fitted}
    from_prior = {one.file: prior.files[one.file] for one in entries if prior and one.transfer}
    digest = write_bundle(output, manifest, {one.file: (models | from_prior)[one.file] for one in entries})
    _record(database, output, manifest, digest)
    return Trained(
        path=output,
        manifest=manifest,
        selections=tuple(one.selected for one in fitted if one.selected and one.entry in entries),
        notes=(*notes_on(data.screened.rows, data.fit), *notes_on_flags(used), *data.loads.notes),
        skipped=data.skipped,
        digest=digest,
        doubts=data.screened.doubts,
        samples=len(scope.samples),
        without_quiet=sum(sample.quiet_us is None for sample in scope.samples),
        prior=data.prior,
        load_ratios=data.loads.ratios,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrainingData:
    """The input of a training: screened samples, tables to `fit`, corrections of a prior, and what is `skipped`."""

    scope: Scope
    statistic: str
    screened: Screened
    loads: ByLoad
    peaks: tuple[Peak, ...]
    prior: Prior | None
    corrected: Sequence[RegressorEntry]
    fit: Sequence[Table]
    skipped: tuple[Note, ...]

    @classmethod
    def of(cls, scope: Scope, statistic: str, prior: Bundle | None, *, where: str) -> Self:
        """Sort the samples of a scope; DataError with nothing to train on."""
        compute, fabric = scope.compute[0], scope.fabric[0] if scope.fabric else None
        screened = screen(scope.samples, statistic=statistic, where=where, compute=compute, fabric=fabric)
        all_loads = tables(screened.rows, statistic=statistic)
        loads, peaks = by_load(all_loads), measured_peaks(scope, all_loads)
        start = None if prior is None else Prior.of(prior, compute, scope.dtype, peaks)
        corrected = [] if start is None else corrections(start, loads.tables, statistic=statistic)
        by_prior = _keys(corrected)
        unfit = {table.key: reason for table in loads.tables if (reason := why_unfit(table))}
        left_out = [
            Note(operator=key[0], direction=key[1], text=reason)
            for key, reason in unfit.items()
            if key not in by_prior
        ]
        skipped = (*screened.skipped, *left_out)
        fit = [table for table in loads.tables if table.key not in unfit]
        if not fit and not corrected:
            raise DataError(f"{where}: no operator has enough rows to train on ({_listed(skipped)})")
        return cls(
            scope=scope,
            statistic=statistic,
            screened=screened,
            loads=loads,
            peaks=peaks,
            prior=start,
            corrected=corrected,
            fit=fit,
            skipped=skipped,
        )

    def tasks(self, seed: int) -> list[FitTask]:
        scope = replace(self.scope, samples=())
        return [
            FitTask(
                table=table,
                base=self.loads.bursts.get(table.key) or base_of(table, self.fit),
                scope=scope,
                statistic=self.statistic,
                seed=seed,
            )
            for table in self.fit
        ]

    def used_samples(self) -> list[SampleRow]:
        """The samples behind fitted tables, corrections, and the bursts that sustained tables share rows with."""
        keys = {table.key for table in self.fit} | _keys(self.corrected)
        used = {(table.key, table.load.is_sustained) for table in self.loads.tables if table.key in keys}
        used |= {(key, False) for key in self.loads.bursts}
        return [
            sample
            for sample, row in zip(self.screened.samples, self.screened.rows, strict=True)
            if ((row.operator, row.direction, row.processes_per_node), row.load.is_sustained) in used
        ]


def _keys(corrected: Sequence[RegressorEntry]) -> set[TableKey]:
    return {(*part, 1) for one in corrected for part in parts_of(one.key)}


def open_measurements(path: Path) -> Database:
    """Open a database to train on, for reading only: a training that is refused leaves the file as it was.

    A database of an older version is migrated first. Errors as `Database.open`.
    """
    check_file(path)
    if read_header(path).user_version < SCHEMA_VERSION:
        Database.open(path).close()
    return Database.open(path, read_only=True)


def _fit_all(
    tasks: Sequence[FitTask],
    earlier: Bundle | None,
    jobs: int,
    on_progress: Callable[[int, int, str], None],
) -> list[Fitted]:
    """The result of each task, in their order; taken over from `earlier` where nothing has changed."""
    fitted = {number: known for number, task in enumerate(tasks) if (known := _known(earlier, task))}
    # The longest first, so that no core is left with one at the end.
    rest = sorted(set(range(len(tasks))) - set(fitted), key=lambda n: (-len(tasks[n].table), n))
    for done, number in enumerate(fitted, start=1):
        on_progress(done, len(tasks), tasks[number].table.operator)
    for position, one in each(fit_table, [tasks[number] for number in rest], jobs=jobs):
        fitted[rest[position]] = one
        on_progress(len(fitted), len(tasks), one.entry.operator)
    return [fitted[number] for number in range(len(tasks))]


def _worthwhile_jobs(found: Sequence[Table]) -> int:
    """One job per core where the work is worth starting processes for."""
    worthwhile = len(found) >= _FEWEST_PARALLEL_TABLES or sum(map(len, found)) >= _FEWEST_PARALLEL_ROWS
    return available_cores() if worthwhile else 1


def _known(earlier: Bundle | None, task: FitTask) -> Fitted | None:
    """Model and entry of an earlier bundle with the same table and recipe."""
    if earlier is None:
        return None
    for entry in earlier.manifest.regressors:
        if (*entry.key, entry.processes_per_node) == task.table.key:
            same = entry.transfer is None and (entry.table_digest, entry.recipe_digest) == (
                table_digest(task.table),
                task.recipe,
            )
            return Fitted(selected=None, model=earlier.files[entry.file], entry=entry) if same else None
    return None


def _described(database: Database, scope: Scope) -> tuple[FabricFingerprint, ...]:
    """The one described fabric with nodes of the measured size; none where several match."""
    sizes = {one.gpus_per_node for one in scope.fabric}
    found = [row.fingerprint for row in database.fabric_list() if row.fingerprint.backend == DESCRIBED]
    alike = [one for one in found if not sizes or one.gpus_per_node in sizes]
    return tuple(alike) if len(alike) == 1 else ()


def _statistic(scope: Scope, prior: Bundle | None) -> str:
    """The prior's statistic where every sample has it, as carried regressors are not measured again."""
    possible = statistic_of_all(scope.samples)
    wanted = possible if prior is None else prior.manifest.statistic
    return possible if wanted == "quiet" else wanted


def _check(database: Database, output: Path, statistic: str, seed: int, jobs: int) -> None:
    """Refuse what cannot succeed, before the long work."""
    if statistic and statistic not in STATISTICS:
        raise UsageError(f"statistic is {statistic!r}, expected {' or '.join(STATISTICS)}")
    if not 0 <= seed <= LARGEST_SEED:
        raise UsageError(f"seed is {seed}, expected 0 to {LARGEST_SEED}")
    if jobs < 0:
        raise UsageError(f"jobs is {jobs}, expected 0 or more")
    if not output.parent.is_dir():
        raise DataError(f"bundle {output}: cannot be written (no folder {output.parent})")
    if output.is_dir():
        raise DataError(f"bundle {output}: cannot be written (it is a folder)")
    if output.exists() and output.samefile(database.path):
        raise UsageError(f"bundle {output}: is the database, expected another file")
    check_writable(output, f"bundle {output}")


def _listed(skipped: Sequence[Note]) -> str:
    more = len(skipped) - _REASONS_SHOWN
    return "; ".join([*map(str, skipped[:_REASONS_SHOWN]), *([f"{more} more"] if more > 0 else [])])


def _newest(database: Database, samples: Sequence[SampleRow]) -> str:
    """Moment of the newest measurement, else of the newest run; imported files may know neither."""
    moments = [sample.measured_at for sample in samples]
    if not any(moments):
        run_ids = {sample.run_id for sample in samples}
        moments = [run.started_at for run in database.run_list() if run.id in run_ids]
    return max(filter(None, moments), default=UNKNOWN_MOMENT)


def _manifest(
    database: Database,
    data: _TrainingData,
    used: Sequence[SampleRow],
    entries: tuple[RegressorEntry, ...],
    prior: Bundle | None,
    seed: int,
) -> Manifest:
    software = (*data.scope.software, *(prior.manifest.software if prior else ()))
    return Manifest(
        kernelcast_version=version("kernelcast"),
        created_at=_newest(database, used),
        dtype=data.scope.dtype,
        statistic=data.statistic,
        compute=data.scope.compute,
        fabric=(*data.scope.fabric, *_described(database, data.scope)),
        software=tuple(dict.fromkeys(software)),
        dataset_digest=dataset_digest(used),
        seed=seed,
        regressors=entries,
        peaks=data.peaks,
    )


def _record(database: Database, output: Path, manifest: Manifest, digest: str) -> None:
    """Record the errors of the regressors in the database; DataError where it cannot be written."""
    with (
        error_context(f"bundle {output} is written, but its errors are not recorded"),
        Database.open(database.path) as writable,
    ):
        writable.add_all(_records(manifest, digest))
        # The reader's connection is still open, so closing this one leaves the rows in the -wal file, and a
        # copy of the database's file alone would lack them.
        writable.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _records(manifest: Manifest, digest: str) -> list[PredictorRecord]:
    return [
        PredictorRecord(
            bundle_digest=digest,
            operator=entry.operator,
            direction=entry.direction,
            dtype=entry.dtype,
            algorithm=entry.algorithm,
            form=entry.form,
            hyperparameters={
                **entry.hyperparameters,
                **({} if entry.processes_per_node == 1 else {"processes_per_node": entry.processes_per_node}),
            },
            training_rows=correcting_points(entry) or entry.rows,
            validation_error=entry.validation_error,
            size_bytes=entry.size_bytes,
            trained_at=manifest.created_at,
            statistic="quiet_us" if entry.statistic == "quiet" else "time_us",
            dataset_digest=manifest.dataset_digest,
            compute_id=manifest.compute[0].digest,
            software_id=manifest.software[0].digest,
            fabric_id=manifest.fabric[0].digest if manifest.fabric else None,
        )
        for entry in manifest.regressors
        if entry.transfer is None or entry.transfer.correction is not None
    ]
