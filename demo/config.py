"""The demo's one TOML file: model, job, and how many real steps."""

import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from kernelcast.runtime import DataError, ModelConfig, Parallelism, UsageError


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
            return cls._from(document)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from error

    @classmethod
    def _from(cls, document: dict[str, Any]) -> Self:
        _only(document, "", {"plan": str, "seed": int, "model": dict, "job": dict, "steps": dict})
        job, steps, model = document["job"], document["steps"], document["model"]
        _only(job, "job.", {"micro_batch": int, "micro_batches": int, "pipeline_stages": list})
        _only(steps, "steps.", {"rounds": int, "warm_up": int, "timed": int})
        for name in ("rounds", "timed"):
            if steps[name] < 1:
                raise UsageError(f"steps.{name} is {steps[name]}, expected at least 1")
        stages = job["pipeline_stages"]
        if not stages or not all(type(pp) is int and pp > 0 for pp in stages):
            raise UsageError(f"job.pipeline_stages is {stages!r}, expected a list of whole numbers from 1")
        return cls(
            plan=document["plan"],
            seed=document["seed"],
            model=_model(model),
            layouts=tuple(
                Parallelism(
                    pp=pp, mp=1, dp=1, micro_batch=job["micro_batch"], micro_batches=job["micro_batches"]
                )
                for pp in stages
            ),
            rounds=steps["rounds"],
            warm_up_steps=steps["warm_up"],
            timed_steps=steps["timed"],
        )


def _shipped() -> str:
    return files("kernelcast.demo").joinpath("demo.toml").read_text(encoding="utf-8")


def _model(values: dict[str, Any]) -> ModelConfig:
    known = [f.name for f in fields(ModelConfig)]
    if unknown := [name for name in values if name not in known]:
        raise UsageError(f"model.{unknown[0]} is unknown; known are {', '.join(known)}")
    try:
        return ModelConfig(**values)
    except TypeError as error:
        raise UsageError(f"model: {str(error).removeprefix('ModelConfig.__init__() ')}") from error


def _only(table: dict[str, Any], prefix: str, expected: dict[str, type]) -> None:
    """Exactly the expected fields, each of its type."""
    for name in table:
        if name not in expected:
            raise UsageError(f"{prefix}{name} is unknown; known are {', '.join(expected)}")
    for name, kind in expected.items():
        if name not in table:
            raise UsageError(f"{prefix}{name} is missing")
        if type(table[name]) is not kind:
            raise UsageError(f"{prefix}{name} is {table[name]!r}, expected a {kind.__name__}")
