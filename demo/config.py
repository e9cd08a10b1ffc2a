"""The demo's one TOML file: model, job, and how many real steps."""

from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Self

from kernelcast.collector.plans.plan_file import load_plan
from kernelcast.collector.training.job import TrainingJob, require_trainable
from kernelcast.runtime import ModelConfig, Parallelism, UsageError
from kernelcast.runtime.errors import error_context, shown, shown_path
from kernelcast.runtime.record import Check, Record, read_record
from kernelcast.runtime.toml_text import read_toml

# Splits and trees take seeds of 32 bits; more steps than that never end.
_LARGEST = 2**32 - 1
_FromZero = Annotated[int, Check(lambda number: 0 <= number <= _LARGEST, "a whole number from 0")]
_FromOne = Annotated[int, Check(lambda number: 1 <= number <= _LARGEST, "a whole number from 1")]
_Different = Check(lambda numbers: 0 < len(numbers) == len(set(numbers)), "a list of different whole numbers")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job(Record):
    micro_batch: int
    micro_batches: int
    pipeline_stages: Annotated[tuple[int, ...], _Different]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps(Record):
    rounds: _FromOne
    warm_up: _FromZero
    timed: _FromOne


@dataclass(frozen=True, slots=True, kw_only=True)
class _File(Record):
    """The file as it is written; demo.toml explains each field."""

    plan: str
    seed: _FromZero
    model: dict[str, Any]
    job: _Job
    steps: _Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """See demo.toml, which explains each field."""

    plan: str
    seed: int
    model: ModelConfig
    layouts: tuple[Parallelism, ...]
    rounds: int
    warm_up_steps: int
    timed_steps: int

    @classmethod
    def load(cls, path: Path | None) -> Self:
        """Read a configuration; None: demo.toml, which ships.

        Raises:
            DataError: the file or its plan is missing, unreadable or not TOML.
            UsageError: a field of it or of its plan is missing, unknown or wrong.
        """
        source = path if path else Path(str(files("kernelcast.demo").joinpath("demo.toml")))
        where, expected = shown_path(path) if path else "demo.toml", "a demo configuration (TOML)"
        document = read_toml(source, where=where, expected=expected)
        with error_context(where):
            config = cls._from(document)
            if path:
                config = replace(config, plan=_in_folder(path.parent, config.plan))
            load_plan(config.plan)  # a wrong one is then an error that names this file
        return config

    @classmethod
    def _from(cls, document: dict[str, Any]) -> Self:
        with error_context(kind=UsageError):
            file = read_record(_File, document)
        model = ModelConfig.from_document(file.model, where="model", name="model")
        require_trainable(model)
        return cls(
            plan=file.plan,
            seed=file.seed,
            model=model,
            layouts=tuple(_layout(model, pp, file.job) for pp in file.job.pipeline_stages),
            rounds=file.steps.rounds,
            warm_up_steps=file.steps.warm_up,
            timed_steps=file.steps.timed,
        )


def _in_folder(folder: Path, plan: str) -> str:
    """The plan's file in `folder` if it exists, else the plan as given: shipped, or a path from the working folder."""
    try:
        return str(folder / plan) if (folder / plan).is_file() else plan
    except (OSError, ValueError):  # too long a name, a null byte
        return plan


def _layout(model: ModelConfig, pp: int, job: _Job) -> Parallelism:
    """One layout, checked before measuring, which takes minutes."""
    with error_context(f"job with {shown(pp)} pipeline stages"):
        layout = Parallelism(pp=pp, tp=1, dp=1, micro_batch=job.micro_batch, micro_batches=job.micro_batches)
        TrainingJob(model=model, parallelism=layout)
    return layout
