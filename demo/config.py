"""The demo's one TOML file: model, job, and how many real steps."""

from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from kernelcast.collector.plans.plan_file import load_plan
from kernelcast.collector.training.job import TrainingJob, require_trainable
from kernelcast.runtime import ModelConfig, Parallelism, UsageError
from kernelcast.runtime.errors import error_context, shown, shown_path
from kernelcast.runtime.request.field_types import require_integer
from kernelcast.runtime.spelling import unknown_field
from kernelcast.runtime.toml_text import read_toml

# Splits and trees take seeds of 32 bits; more steps than that never end.
_LARGEST = 2**32 - 1


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
        _only(document, "", {"plan": str, "seed": int, "model": dict, "job": dict, "steps": dict})
        job, steps = document["job"], document["steps"]
        _only(job, "job.", {"micro_batch": int, "micro_batches": int, "pipeline_stages": list})
        _only(steps, "steps.", {"rounds": int, "warm_up": int, "timed": int})
        _at_least(0, document, "", "seed")
        _at_least(1, steps, "steps.", "rounds", "timed")
        _at_least(0, steps, "steps.", "warm_up")
        model = _model(document["model"])
        stages = job["pipeline_stages"]
        if not stages or not all(type(pp) is int for pp in stages) or len(set(stages)) != len(stages):
            raise UsageError(
                f"job.pipeline_stages is {shown(stages)}, expected a list of different whole numbers"
            )
        return cls(
            plan=document["plan"],
            seed=document["seed"],
            model=model,
            layouts=tuple(_layout(model, pp, job) for pp in stages),
            rounds=steps["rounds"],
            warm_up_steps=steps["warm_up"],
            timed_steps=steps["timed"],
        )


def _in_folder(folder: Path, plan: str) -> str:
    """The plan's file in `folder` if it exists, else the plan as given: shipped, or a path from the working folder."""
    try:
        return str(folder / plan) if (folder / plan).is_file() else plan
    except (OSError, ValueError):  # too long a name, a null byte
        return plan


def _model(values: dict[str, Any]) -> ModelConfig:
    model = ModelConfig.from_document(values, where="model", name="model")
    require_trainable(model)
    return model


def _layout(model: ModelConfig, pp: int, job: dict[str, Any]) -> Parallelism:
    """One layout, checked before measuring, which takes minutes."""
    with error_context(f"job with {shown(pp)} pipeline stages"):
        layout = Parallelism(
            pp=pp, tp=1, dp=1, micro_batch=job["micro_batch"], micro_batches=job["micro_batches"]
        )
        TrainingJob(model=model, parallelism=layout)
    return layout


_KINDS = {str: "a text", int: "a whole number", list: "a list", dict: "a table"}


def _only(table: dict[str, Any], prefix: str, expected: dict[str, type]) -> None:
    """Exactly the expected fields, each of its type."""
    for name in table:
        if name not in expected:
            raise unknown_field(name, expected, path=prefix)
    for name, kind in expected.items():
        if name not in table:
            raise UsageError(f"{prefix}{name} is missing")
        if type(table[name]) is not kind:
            raise UsageError(f"{prefix}{name} is {shown(table[name])}, expected {_KINDS[kind]}")


def _at_least(low: int, table: dict[str, Any], prefix: str, *names: str) -> None:
    for name in names:
        require_integer(f"{prefix}{name}", table[name], low=low, high=_LARGEST)
