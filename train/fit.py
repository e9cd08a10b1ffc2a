"""`train`: every operator that a database has enough rows of becomes a regressor, and all of them one bundle."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from kernelcast.runtime import DataError, UsageError
from kernelcast.runtime.bundle import write_bundle
from kernelcast.runtime.manifest import Manifest, RegressorEntry
from kernelcast.store import Database, PredictorRecord, SampleRow, dataset_digest
from kernelcast.train.dataset import STATISTICS, Row, Table, tables
from kernelcast.train.export import check_parity, to_onnx
from kernelcast.train.scope import Scope
from kernelcast.train.selection import FEWEST_ROWS, Selected, select

DEFAULT_SEED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """An operator and direction that got no regressor, and why."""

    operator: str
    direction: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What was written: the manifest's entries, what was left out, and the bundle's digest."""

    path: Path
    manifest: Manifest
    skipped: tuple[Skipped, ...]
    digest: str

    @property
    def mean_validation_error(self) -> float:
        """Mean over the regressors, as a fraction."""
        errors = [entry.validation_error for entry in self.manifest.regressors]
        return sum(errors) / len(errors)


def train_bundle(
    database: Database,
    output: Path,
    *,
    statistic: str = "quiet",
    dtype: str = "",
    hardware: str = "",
    software: str = "",
    fabric: str = "",
    seed: int = DEFAULT_SEED,
    on_progress: Callable[[int, int, str], None] = lambda done, total, operator: None,
) -> Trained:
    """Fit, export and bundle. `dtype` and the fingerprint id prefixes choose where the database holds several.

    Same rows and seed, same bytes: the bundle is dated by its newest measurement.

    Raises:
        UsageError: several dtypes or fingerprints to choose from, or none that matches.
        DataError: no usable rows, or an export that answers other than its regressor.
    """
    if statistic not in STATISTICS:
        raise UsageError(f"statistic is {statistic!r}, expected {' or '.join(STATISTICS)}")
    scope = Scope.choose(database, dtype=dtype, hardware=hardware, software=software, fabric=fabric)
    samples = scope.samples(database)
    found = tables(_rows(samples, statistic, database), statistic=statistic)
    selections: list[Selected] = []
    skipped: list[Skipped] = []
    for done, table in enumerate(found, start=1):
        if len(table) < FEWEST_ROWS:
            reason = f"{len(table)} distinct workloads, expected {FEWEST_ROWS} or more"
            skipped.append(Skipped(operator=table.operator, direction=table.direction, reason=reason))
        else:
            selections.append(select(table, seed))
        on_progress(done, len(found), table.operator)
    if not selections:
        raise DataError(
            f"{database.path}: no operator has {FEWEST_ROWS} or more distinct workloads with a time"
        )
    models = [to_onnx(s.regressor) for s in selections]
    for selected, model in zip(selections, models, strict=True):
        check_parity(model, selected.regressor, selected.table, seed)
    manifest = Manifest(
        kernelcast_version=version("kernelcast"),
        created_at=max(row.measured_at or "" for row in samples),
        dtype=scope.dtype,
        statistic=statistic,
        compute=scope.compute,
        fabric=scope.fabric,
        software=scope.software,
        dataset_digest=dataset_digest(samples),
        seed=seed,
        regressors=tuple(
            _entry(s, model, scope.dtype, statistic) for s, model in zip(selections, models, strict=True)
        ),
    )
    files = {e.file: model for e, model in zip(manifest.regressors, models, strict=True)}
    digest = write_bundle(output, manifest, files)
    database.add_predictors(_records(manifest, digest))
    return Trained(path=output, manifest=manifest, skipped=tuple(skipped), digest=digest)


def _rows(samples: Sequence[SampleRow], statistic: str, database: Database) -> Iterable[Row]:
    for sample in samples:
        time_us = sample.quiet_us if statistic == "quiet" else sample.time_us
        if time_us is None:
            raise DataError(
                f"{database.path}: sample {sample.sample_id} of {sample.operator} has no {statistic} time; "
                "train with --statistic middle_five, or measure it here"
            )
        yield Row(operator=sample.operator, direction=sample.direction, vector=sample.vector, time_us=time_us)


def _entry(selected: Selected, model: bytes, dtype: str, statistic: str) -> RegressorEntry:
    table, candidate = selected.table, selected.regressor.candidate
    return RegressorEntry.for_model(
        model,
        operator=table.operator,
        direction=table.direction,
        dtype=dtype,
        training_range=_training_range(table),
        algorithm=candidate.algorithm,
        form=candidate.form,
        hyperparameters=candidate.hyperparameters,
        validation_error=selected.validation_error,
        rows=len(table),
        statistic=statistic,
    )


def _training_range(table: Table) -> list[tuple[float, float]]:
    lows, highs = table.workloads.min(axis=0), table.workloads.max(axis=0)
    return list(zip(lows.tolist(), highs.tolist(), strict=True))


def _records(manifest: Manifest, digest: str) -> list[PredictorRecord]:
    return [
        PredictorRecord(
            bundle_digest=digest,
            operator=entry.operator,
            direction=entry.direction,
            dtype=entry.dtype,
            algorithm=entry.algorithm,
            form=entry.form,
            hyperparameters=entry.hyperparameters,
            training_rows=entry.rows,
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
    ]
