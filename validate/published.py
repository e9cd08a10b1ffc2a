"""Reproduces the method's published table: imports a site's data, trains on it, predicts its measured steps."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from kernelcast.runtime import DataError, Estimator, UsageError, read_bundle
from kernelcast.runtime.answers.asking import Question, question
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.errors import shown_path
from kernelcast.runtime.json_text import plain_values, values_of
from kernelcast.store import Database
from kernelcast.store.importers import (
    PublishedError,
    read_estimate_train_time,
    read_published_errors,
    store_parsed,
)
from kernelcast.train.fit import DEFAULT_SEED, Trained, train_bundle
from kernelcast.train.report.figures import TrainingFigures, figures
from kernelcast.validate.authors_regressors import AuthorsRegressors
from kernelcast.validate.comparison import ComparedRun, compare_runs, mean_absolute
from kernelcast.validate.runs import RunsFile

FORMAT = "kernelcast.published_validation/2"
STATISTIC = "middle_five"
"""The only statistic in the authors' data."""
SITES = ("perlmutter", "vista")
"""Sites whose published steps ship with kernelcast, as runs files in this folder."""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A site's steps: predicted from its data without calibration, measured, and predicted by the authors."""

    file: RunsFile
    trained: Trained
    runs: tuple[ComparedRun, ...]

    @property
    def mean_abs_error(self) -> float:
        """Mean of the absolute errors of the closed form."""
        return mean_absolute([run.error for run in self.runs]) or 0.0

    @property
    def mean_abs_simulated_error(self) -> float:
        """The same of the simulated timeline."""
        return mean_absolute([run.simulated_error for run in self.runs]) or 0.0

    @property
    def mean_abs_published_error(self) -> float | None:
        """The same of the published predictions; None unless all are known."""
        return mean_absolute([run.run.published_error for run in self.runs])

    @property
    def training(self) -> TrainingFigures:
        """What was trained, left out and found doubtful."""
        return figures(self.trained)

    @property
    def mean_validation_error(self) -> float | None:
        """Mean error of the regressors on held-out rows, as `kernelcast train` prints it."""
        return self.training.mean_validation_error

    @property
    def taken_over(self) -> int:
        """Regressors that an earlier bundle already had."""
        return len(self.trained.manifest.regressors) - len(self.trained.selections)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; errors are fractions (docs/json.md)."""
        manifest = self.trained.manifest
        return {
            "format": FORMAT,
            **values_of(self.file, "site", "hardware", "source"),
            "runs_digest": self.file.digest,
            **plain_values(
                self, "mean_abs_error", "mean_abs_simulated_error", "mean_abs_published_error", "runs"
            ),
            "regressors": len(manifest.regressors),
            **plain_values(self, "taken_over", "mean_validation_error", "training"),
            "provenance": {
                "bundle_digest": self.trained.digest,
                **values_of(manifest, "dataset_digest", "kernelcast_version", "dtype", "statistic", "seed"),
            },
        }


def published_runs(directory: Path, given: str) -> RunsFile:
    """The runs file `given`: a path or the name of a site that ships (in any case); empty: the folder's name.

    Raises:
        UsageError: no such name, no site has the folder's name, or a field is wrong.
        DataError: no such folder, or a file that cannot be read.
    """
    name = (given or directory.resolve().name).lower()
    if name in SITES:
        return RunsFile.read(Path(str(files("kernelcast.validate").joinpath(f"{name}.toml"))))
    if not given and not directory.is_dir():
        found = "not a folder" if directory.exists() else "no such folder"
        raise DataError(f"{shown_path(directory)}: {found}; expected one with operator/ and nccl/ in it")
    if not given:
        raise UsageError(
            f"{shown_path(directory)}: no measured steps are known for a site of that name, expected one of "
            f"{', '.join(SITES)}, or --runs FILE"
        )
    return RunsFile.read(Path(given))


def validate_published(
    directory: Path,
    runs: RunsFile,
    *,
    database_path: Path | None = None,
    output: Path | None = None,
    earlier: Bundle | None = None,
    dtype: str = "",
    seed: int = DEFAULT_SEED,
    jobs: int = 0,
    on_import: Progress = lambda done, total, what: None,
    on_train: Progress = lambda done, total, what: None,
    on_imply: Progress = lambda done, total, what: None,
) -> Published:
    """Import a folder of the authors' data, train on it, and predict the steps of `runs`.

    `database_path` and `output` keep the imported rows and the bundle; rows of other hardware or software in that
    database are ignored. Regressors of `earlier` with the same rows and settings are taken over, which saves time and
    changes nothing else.

    Raises:
        UsageError: as `train_bundle`, and for runs that cannot be predicted.
        DataError: no such data, nothing to train on, or the bundle lacks what a run needs.
    """
    # Read first: a mistake shows before the long work.
    authors = _published_settings(directory)
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as name:
        folder = Path(name)
        parsed = read_estimate_train_time([directory], on_progress=on_import)
        with Database.open(database_path or folder / "published.db", create=True) as database:
            store_parsed(database, parsed)
            # A folder has one device and one software version; the database may hold others.
            imported = parsed.runs[0]
            trained = train_bundle(
                database,
                output or folder / "published.kcast",
                statistic=STATISTIC,
                dtype=dtype,
                hardware=imported.compute.digest,
                software=imported.software.digest,
                seed=seed,
                earlier=earlier,
                jobs=jobs,
                on_progress=on_train,
            )
        # Their own steps are left out of the intervals.
        estimator = Estimator(read_bundle(trained.path)).leaving_out(runs.publisher)
    theirs = AuthorsRegressors.of(parsed, authors, dtype=trained.manifest.dtype)
    theirs.ask_ahead(_questions(compare_runs(estimator, runs.runs)), on_imply)
    return Published(
        file=runs,
        trained=trained,
        runs=compare_runs(estimator, runs.runs, implied=theirs.components),
    )


def _questions(compared: Sequence[ComparedRun]) -> list[Question]:
    return [
        question(call)
        for one in compared
        if one.run.published_components
        for stage in range(one.run.parallelism.pp)
        for _, call in one.closed_form.parts.calls(stage)
    ]


def _published_settings(directory: Path) -> tuple[PublishedError, ...]:
    """Settings of the authors' regressors; none where the folder has no list of them."""
    try:
        return read_published_errors(directory)
    except DataError:
        # Prediction does not need them; a folder of another kind is refused by the import.
        return ()
