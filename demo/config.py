"""The demo's one TOML file: model, job, and how many real steps."""

import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from kernelcast.collector.training.job import TrainingJob, require_trainable
from kernelcast.runtime import DataError, ModelConfig, Parallelism, UsageError

# Seeds are 32-bit numbers where the split and the trees take them; more steps than that never end.
_LARGEST = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """See demo.toml, which says what each field means."""

    plan: str
    seed: int
    model: ModelConfig
    layouts: tuple[Parallelism, ...]
    rounds: int
    warm_up_steps: int
    timed_steps: int

    @classmethod
    def load(cls, path: Path | None) -> Self:
        """Read a configuration; None is the one that ships.

        Raises:
            DataError: the file is missing or not TOML.
            UsageError: a field is missing, unknown or wrong.
        """
        where = str(path) if path else "demo.toml"
        try:
            text = path.read_text(encoding="utf-8") if path else _shipped()
            document = tomllib.loads(text)
        except FileNotFoundError:
            raise DataError(f"{where}: no such file, expected a demo configuration (TOML)") from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise DataError(f"{where}: not readable as TOML ({error})") from error
        try:
            config = cls._from(document)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from error
        beside = path.parent / config.plan if path else None
        return replace(config, plan=str(beside)) if beside and beside.is_file() else config

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
            raise UsageError(f"job.pipeline_stages is {stages!r}, expected a list of different whole numbers")
        return cls(
            plan=document["plan"],
            seed=document["seed"],
            model=model,
            layouts=tuple(_layout(model, pp, job) for pp in stages),
            rounds=steps["rounds"],
            warm_up_steps=steps["warm_up"],
            timed_steps=steps["timed"],
        )


def _shipped() -> str:
    return files("kernelcast.demo").joinpath("demo.toml").read_text(encoding="utf-8")


def _model(values: dict[str, Any]) -> ModelConfig:
    _known(values, "model.", [f.name for f in fields(ModelConfig)])
    for field in fields(ModelConfig):
        if field.default is MISSING and field.name not in values:
            raise UsageError(f"model.{field.name} is missing")
    try:
        model = ModelConfig(**values)
    except UsageError as error:
        raise UsageError(f"model.{error}") from error
    require_trainable(model)
    return model


def _layout(model: ModelConfig, pp: int, job: dict[str, Any]) -> Parallelism:
    """One layout, checked now: measuring takes minutes, and only then would a prediction or a real step refuse it."""
    try:
        layout = Parallelism(
            pp=pp, mp=1, dp=1, micro_batch=job["micro_batch"], micro_batches=job["micro_batches"]
        )
        TrainingJob(model=model, parallelism=layout)
    except UsageError as error:
        raise UsageError(f"job with {pp} pipeline stages: {error}") from error
    return layout


_KINDS = {str: "a text", int: "a whole number", list: "a list", dict: "a table"}


def _only(table: dict[str, Any], prefix: str, expected: dict[str, type]) -> None:
    """Exactly the expected fields, each of its type."""
    _known(table, prefix, list(expected))
    for name, kind in expected.items():
        if name not in table:
            raise UsageError(f"{prefix}{name} is missing")
        if type(table[name]) is not kind:
            raise UsageError(f"{prefix}{name} is {table[name]!r:.80}, expected {_KINDS[kind]}")


def _known(table: dict[str, Any], prefix: str, names: Sequence[str]) -> None:
    for name in table:
        if name not in names:
            raise UsageError(f"{prefix}{name} is unknown; known are {', '.join(names)}")


def _at_least(low: int, table: dict[str, Any], prefix: str, *names: str) -> None:
    for name in names:
        if not low <= table[name] <= _LARGEST:
            raise UsageError(f"{prefix}{name} is {table[name]}, expected a whole number from {low}")
