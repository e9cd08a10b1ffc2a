"""Configurations that `validate run` trains: a TOML file of models and layouts with a runs file's fields."""

from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from kernelcast.collector.training.job import TrainingJob
from kernelcast.runtime import UsageError
from kernelcast.runtime.errors import error_context, shown, shown_path
from kernelcast.runtime.request.field_types import whole
from kernelcast.runtime.request.fields import LAYOUT
from kernelcast.runtime.small_file import read_toml
from kernelcast.validate.runs import RunModels, only_known, request_of, runs_and_defaults

_NUMBERS = {"rounds": (2, 1), "warm_up_steps": (2, 0), "seed": (0, 0)}
"""Default and least value of each."""
_FIELDS = (*_NUMBERS, "models", "defaults", "runs")
_RUN_FIELDS = ("model", "sequence_length", *LAYOUT, "bucket_entries")
_MOST = 2**31 - 1
_SHIPPED = ("here", "modern")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The configurations to train, their rounds and their warm-up steps."""

    jobs: tuple[TrainingJob, ...]
    rounds: int
    warm_up_steps: int
    seed: int

    @classmethod
    def load(cls, path: Path | None, *, dtype: str) -> Self:
        """Read a configuration, a file or the name of one that ships (`here`, `modern`); None: here.

        Raises:
            DataError: the file, or a model's file that it names, is missing, unreadable or not TOML.
            UsageError: a field is unknown, missing or wrong, or a layout cannot be trained here.
        """
        name = "here" if path is None else str(path)
        source, where = path, f"configuration {shown_path(name)}"
        if source is None or (name in _SHIPPED and not source.exists()):
            source = Path(str(files("kernelcast.validate").joinpath(f"{name}.toml")))
            where = f"configuration {name}.toml"
        document = read_toml(source, where=where)
        with error_context(where):
            return cls.of(document, folder=path.parent if path else Path(), dtype=dtype)

    @classmethod
    def of(cls, document: dict[str, Any], *, folder: Path, dtype: str) -> Self:
        """The configuration of a file's fields, with models' files relative to `folder`; errors as `load`."""
        only_known(document, _FIELDS)
        runs, defaults = runs_and_defaults(document, _RUN_FIELDS)
        numbers = {name: document.get(name, default) for name, (default, _) in _NUMBERS.items()}
        for name, value in numbers.items():
            whole(_NUMBERS[name][1], _MOST).check(name, value)
        models = RunModels.of(document.get("models", {}), folder=folder)
        jobs = [_job(number, run, defaults, models, dtype) for number, run in enumerate(runs, start=1)]
        if len(set(jobs)) < len(jobs):
            again = next(job for job in jobs if jobs.count(job) > 1)
            raise UsageError(
                f"runs holds {again.model.name} ({again.label}) twice, expected each configuration once"
            )
        return cls(jobs=tuple(jobs), **numbers)

    def only(self, labels: tuple[str, ...]) -> Self:
        """Configurations of some layouts, named `pp-tp-dp`; none named are all. UsageError for an unknown one."""
        known = list(dict.fromkeys(job.label for job in self.jobs))
        for label in labels:
            if label not in known:
                raise UsageError(
                    f"layout {shown(label)} is not in the configuration, known are {', '.join(known)}"
                )
        return replace(self, jobs=tuple(job for job in self.jobs if not labels or job.label in labels))

    def check_processes(self, most: int, reason: str) -> None:
        """Check that no configuration needs more than `most` processes: a UsageError has the `reason`."""
        for job in self.jobs:
            needed = job.parallelism.world_size
            if needed > most:
                raise UsageError(
                    f"{job.model.name} ({job.label}) needs {needed} process{'es' if needed > 1 else ''}, "
                    f"expected at most {most} ({reason})"
                )


def _job(
    number: int, run: dict[str, Any], defaults: dict[str, Any], models: RunModels, dtype: str
) -> TrainingJob:
    with error_context(f"run {number}"):
        values = {**defaults, **only_known(run, _RUN_FIELDS)}
        model = models.named(values)
        asked = request_of(values, model)
        return TrainingJob(
            model=model,
            parallelism=asked["parallelism"],
            bucket_entries=asked["bucket_entries"],
            dtype=dtype,
        )
