"""The demo's one TOML file: a plan of operators to measure, and the steps that are then trained for real."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Self

from kernelcast.collector.plans.plan_file import load_plan
from kernelcast.runtime import UsageError
from kernelcast.runtime.errors import error_context, shown_path
from kernelcast.runtime.record import Record, between, read_record
from kernelcast.runtime.small_file import read_toml
from kernelcast.validate.run_config import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own(Record):
    """The fields that a configuration of `validate run` does not have."""

    plan: str
    steps: Annotated[int, between(1, 2**31 - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """A plan, and timed steps of every configuration in `runs`; see demo.toml, which explains each field."""

    plan: str
    steps: int
    runs: RunConfig

    @classmethod
    def load(cls, path: Path | None, *, dtype: str) -> Self:
        """Read a configuration; None: demo.toml, which ships. UsageError or DataError names file and field."""
        source = path if path else Path(str(files("kernelcast.demo").joinpath("demo.toml")))
        where, expected = shown_path(path) if path else "demo.toml", "a demo configuration (TOML)"
        document = read_toml(source, where=where, expected=expected)
        with error_context(where):
            with error_context(kind=UsageError):
                own = {name: document.pop(name) for name in ("plan", "steps") if name in document}
                found = read_record(_Own, own)
            plan = _in_folder(path.parent, found.plan) if path else found.plan
            load_plan(plan)  # a wrong one is then an error that names this file
            return cls(
                plan=plan,
                steps=found.steps,
                runs=RunConfig.of(document, folder=source.parent, dtype=dtype),
            )


def _in_folder(folder: Path, plan: str) -> str:
    """The plan's file in `folder` if it exists, else the plan as given: shipped, or a path from the working folder."""
    try:
        return str(folder / plan) if (folder / plan).is_file() else plan
    except (OSError, ValueError):  # too long a name, a null byte
        return plan
