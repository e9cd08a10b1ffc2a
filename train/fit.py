"""`train`: one regressor per operator, direction and level of processes per node, all of them in one bundle."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kernelcast.runtime import DataError, UsageError
from kernelcast.runtime.bundle.file import Bundle, write_bundle
from kernelcast.runtime.bundle.fingerprint import DESCRIBED, FabricFingerprint
from kernelcast.runtime.bundle.manifest import UNKNOWN_MOMENT, Manifest, RegressorEntry
from kernelcast.runtime.errors import error_context
from kernelcast.runtime.output_file import check_writable
from kernelcast.store import Database, PredictorRecord, SampleRow, dataset_digest
from kernelcast.store.database_file import check_file, read_header
from kernelcast.store.database_file import check_writable as check_database_writable
from kernelcast.store.doubts import count_doubts
from kernelcast.store.migrations import SCHEMA_VERSION
from kernelcast.train.dataset import STATISTICS, Table, tables
from kernelcast.train.fit_table import FitTask, Fitted, fit_table, table_digest
from kernelcast.train.levels import base_of
from kernelcast.train.loads import LoadRatio, by_load
from kernelcast.train.notes import Note, constant_times, notes_on, notes_on_flags
from kernelcast.train.peaks import measured_peaks
from kernelcast.train.prior import Prior
from kernelcast.train.prior_choice import choose, corrections, parts_of
from kernelcast.train.scope import Scope
from kernelcast.train.screening import Skipped, screen, statistic_of_all
from kernelcast.train.selection import FEWEST_ROWS, Selected
from kernelcast.train.workers import available_cores, each

DEFAULT_SEED = 20
LARGEST_SEED = 2**32 - 1
_REASONS_SHOWN = 3
# A process takes seconds to start, and as long as a dozen small tables to fit.
_FEWEST_PARALLEL_ROWS = 2000
_FEWEST_PARALLEL_TABLES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What was written: the manifest's entries, what was left out, and the bundle's digest.

    `without_quiet` counts samples without a quiet time.
    `selections` hold the rows of the regressors that were fitted, and their held-out predictions; `notes` are on rows
    that are doubtful, `doubts` counts those that cannot be right, of `samples`. `prior` is what others rest on.
    `load_ratios` compare sustained load with bursts wherever both were measured.
    """

    path: Path
    manifest: Manifest
    skipped: tuple[Skipped, ...]
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
    dtype: str = "",
    hardware: str = "",
    software: str = "",
    fabric: str = "",
    traces: bool = False,
    seed: int = DEFAULT_SEED,
    earlier: Bundle | None = None,
    prior: Bundle | None = None,
    jobs: int = 1,
    on_progress: Callable[[int, int, str], None] = lambda done, total, operator: None,
) -> Trained:
    """Fit, export and bundle. `dtype` and the fingerprint id prefixes choose where the database holds several.

    Without `statistic`, it is the quiet one where every sample has it, else the one that all of them have.
    Samples of real runs' `traces` train only where asked for.

    Same rows and seed, same bytes: the bundle is dated by its newest measurement. An output that is there already is
    replaced once everything else has worked. The database may be open for reading only: it is opened anew to record
    the errors, after everything else.

    Regressors of `earlier` that were fitted on the same rows in the same way are taken over as they are, which gives
    the same bytes as fitting them again. `jobs` are processes that fit at once (0: one per core, where that pays);
    the bytes do not depend on them.

    Each operator is fitted to its times under sustained load where there are enough, else to bursts (loads.py).

    `prior` is a bundle of another device. Operators with few rows get its regressors corrected by them, those without
    rows its regressors scaled by the peaks of both devices (prior.py); a single row is then enough.

    Raises:
        UsageError: several dtypes or fingerprints to choose from, none that matches, or another wrong argument.
        DataError: no usable rows, an export that answers other than its regressor, or the bundle or its records
            cannot be written.
    """
    _check(database, output, statistic, seed, jobs)
    scope = Scope.choose(
        database, dtype=dtype, hardware=hardware, software=software, fabric=fabric, traces=traces
    )
    statistic = statistic or _statistic(scope, prior)
    screened = screen(
        scope.samples,
        statistic=statistic,
        where=str(database.path),
        compute=scope.compute[0],
        fabric=scope.fabric[0] if scope.fabric else None,
    )
    all_loads = tables(screened.rows, statistic=statistic)
    chosen = by_load(all_loads)
    found = chosen.tables
    peaks = measured_peaks(scope, all_loads)
    start = None if prior is None else Prior.of(prior, scope.compute[0], scope.dtype, peaks)
    corrected = [] if start is None else corrections(start, found, statistic=statistic)
    unfit = {table.key: reason for table in found if (reason := _why_unfit(table))}
    enough = [table for table in found if table.key not in unfit]
    by_prior = {(*part, 1) for one in corrected for part in parts_of(one.entry.key)}
    skipped = [
        *screened.skipped,
        *(
            Skipped(operator=o, direction=d, reason=r)
            for (o, d, n), r in unfit.items()
            if (o, d, n) not in by_prior
        ),
    ]
    if not enough and not corrected:
        raise DataError(f"{database.path}: no operator has enough rows to train on ({_listed(skipped)})")
    apart = replace(scope, samples=())
    tasks = [
        FitTask(
            table=t,
            base=chosen.bursts.get(t.key) or base_of(t, enough),
            scope=apart,
            statistic=statistic,
            seed=seed,
        )
        for t in enough
    ]
    # Errors are recorded in it at the end: minutes later is too late to find that it cannot be written.
    check_database_writable(database.path)
    fitted = _fit_all(tasks, earlier, jobs or _worthwhile_jobs(enough), on_progress)
    keys = {table.key for table in enough} | by_prior
    fitted_loads = {(table.key, table.load.is_sustained) for table in found if table.key in keys}
    fitted_loads |= {(key, False) for key in chosen.bursts}
    used = [
        sample
        for sample, row in zip(screened.samples, screened.rows, strict=True)
        if ((row.operator, row.direction, row.processes_per_node), row.load.is_sustained) in fitted_loads
    ]
    entries = tuple(one.entry for one in fitted)
    if start is not None:
        entries = choose(start, entries, [one.entry for one in corrected], statistic=statistic)
    manifest = Manifest(
        kernelcast_version=version("kernelcast"),
        created_at=_newest(database, used),
        dtype=scope.dtype,
        statistic=statistic,
        compute=scope.compute,
        fabric=(*scope.fabric, *_described(database, scope)),
        software=tuple(dict.fromkeys((*scope.software, *(prior.manifest.software if prior else ())))),
        dataset_digest=dataset_digest(used),
        seed=seed,
        regressors=entries,
        peaks=peaks,
    )
    models = {one.entry.file: one.model for one in fitted}
    digest = write_bundle(
        output,
        manifest,
        {
            one.file: prior.files[one.file] if prior and one.transfer else models[one.file]
            for one in manifest.regressors
        },
    )
    with (
        error_context(f"bundle {output} is written, but its errors are not recorded"),
        Database.open(database.path) as writable,
    ):
        writable.add_predictors(_records(manifest, digest))
        # The reader's connection is still open, so closing this one leaves the rows in the -wal file, and a
        # copy of the database's file alone would lack them.
        writable.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    return Trained(
        path=output,
        manifest=manifest,
        selections=tuple(one.selected for one in fitted if one.selected and one.entry in entries),
        notes=(*notes_on(screened.rows, enough), *notes_on_flags(used), *chosen.notes),
        skipped=tuple(skipped),
        digest=digest,
        doubts=screened.doubts,
        samples=len(scope.samples),
        without_quiet=sum(sample.quiet_us is None for sample in scope.samples),
        prior=start,
        load_ratios=chosen.ratios,
    )


def open_measurements(path: Path) -> Database:
    """Open a database to train on, for reading only: a training that is refused leaves the file as it was.

    A database of an older version is migrated first.

    Raises:
        DataError: as `Database.open`.
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
    """What each task gives, in their order; taken over from `earlier` where nothing has changed."""
    fitted = {number: known for number, task in enumerate(tasks) if (known := _known(earlier, task))}
    # The longest first, so that no core is left with one at the end.
    rest = sorted(set(range(len(tasks))) - set(fitted), key=lambda n: (-len(tasks[n].table), n))
    rest = rest if jobs > 1 else sorted(rest)
    for done, number in enumerate(fitted, start=1):
        on_progress(done, len(tasks), tasks[number].table.operator)
    for position, one in each(fit_table, [tasks[number] for number in rest], jobs=jobs):
        fitted[rest[position]] = one
        on_progress(len(fitted), len(tasks), one.entry.operator)
    return [fitted[number] for number in range(len(tasks))]


def _worthwhile_jobs(found: Sequence[Table]) -> int:
    """As many jobs as cores, where the work is worth starting processes for."""
    worthwhile = len(found) >= _FEWEST_PARALLEL_TABLES or sum(map(len, found)) >= _FEWEST_PARALLEL_ROWS
    return available_cores() if worthwhile else 1


def _known(earlier: Bundle | None, task: FitTask) -> Fitted | None:
    """Model and entry of an earlier bundle, where nothing has changed that they were made of."""
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
    """The described fabric of the database whose nodes are like the measured ones; none where several are."""
    sizes = {one.gpus_per_node for one in scope.fabric}
    found = [row.fingerprint for row in database.fabric_list() if row.fingerprint.backend == DESCRIBED]
    alike = [one for one in found if not sizes or one.gpus_per_node in sizes]
    return tuple(alike) if len(alike) == 1 else ()


def _statistic(scope: Scope, prior: Bundle | None) -> str:
    """That of the prior, where every sample has it: what is carried over is not measured again."""
    possible = statistic_of_all(scope.samples)
    wanted = possible if prior is None else prior.manifest.statistic
    return possible if wanted == "quiet" else wanted


def _check(database: Database, output: Path, statistic: str, seed: int, jobs: int) -> None:
    """What can be known to fail before the long work."""
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


def _why_unfit(table: Table) -> str:
    """Why a table gets no regressor; empty where it does."""
    level = f" with {table.processes_per_node} processes per node" if table.processes_per_node > 1 else ""
    if len(table) < FEWEST_ROWS:
        return f"{len(table)} distinct workloads{level}, expected {FEWEST_ROWS} or more"
    return constant_times(table)


def _listed(skipped: Sequence[Skipped]) -> str:
    """The first few in one line."""
    shown = [f"{s.operator} ({s.direction}): {s.reason}" for s in skipped[:_REASONS_SHOWN]]
    more = [f"{len(skipped) - len(shown)} more"] if len(skipped) > len(shown) else []
    return "; ".join(shown + more)


def _newest(database: Database, samples: Sequence[SampleRow]) -> str:
    """Moment of the newest measurement, else of the newest run; imported files may know neither."""
    moments = [sample.measured_at for sample in samples]
    if not any(moments):
        run_ids = {sample.run_id for sample in samples}
        moments = [run.started_at for run in database.run_list() if run.id in run_ids]
    return max(filter(None, moments), default=UNKNOWN_MOMENT)


def _settings(entry: RegressorEntry) -> dict[str, Any]:
    level = {} if entry.processes_per_node == 1 else {"processes_per_node": entry.processes_per_node}
    return {**entry.hyperparameters, **level}


def _fitted_rows(entry: RegressorEntry) -> int:
    """Rows of this database that it was fitted to."""
    correction = None if entry.transfer is None else entry.transfer.correction
    return entry.rows if correction is None else correction.points


def _records(manifest: Manifest, digest: str) -> list[PredictorRecord]:
    return [
        PredictorRecord(
            bundle_digest=digest,
            operator=entry.operator,
            direction=entry.direction,
            dtype=entry.dtype,
            algorithm=entry.algorithm,
            form=entry.form,
            hyperparameters=_settings(entry),
            training_rows=_fitted_rows(entry),
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
