"""Flux's side of the frobnicator interface, as flux-core documents it: jobspecs, plugins, and their process."""

import importlib.util
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PLUGIN = Path(__file__).parents[3] / "integrations" / "flux" / "kernelcast.py"


class FrobnicatorPlugin:
    """The base class of plugins."""

    def __init__(self, parser: Any) -> None:
        """Take the parser that plugins may add options to."""

    def configure(self, args: Namespace, config: Mapping[str, Any]) -> None:
        """Get the broker's configuration."""

    def frob(self, jobspec: "Jobspec", userid: int, urgency: int, flags: int) -> None:
        """Change the jobspec in place; an exception rejects the job."""
        raise NotImplementedError


class Jobspec:
    """flux.job.Jobspec: what plugins are given."""

    def __init__(self, **jobspec: Any) -> None:
        self.jobspec = jobspec

    @property
    def attributes(self) -> Any:
        """The attributes' dictionary itself."""
        return self.jobspec["attributes"]

    @property
    def duration(self) -> float | None:
        """Seconds; 0 or None when it was not set."""
        value: float | None = self.attributes.get("system", {}).get("duration")
        return value

    @duration.setter
    def duration(self, value: float) -> None:
        if not isinstance(value, float | int):
            raise TypeError("duration must be an int, float, string, or timedelta")
        if value < 0:
            raise ValueError("duration must not be negative")
        self.attributes.setdefault("system", {})["duration"] = float(value)


class Ingest:
    """`flux job-frobnicator` with our plugin: takes a job as a line of JSON, and answers what it made of it."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.said = ""

    def __call__(
        self, jobspec: Mapping[str, Any], *, userid: int, command: Path, timeout: float = 300
    ) -> Any:
        parser = ArgumentParser()
        plugin = self.module.Frobnicator(parser=parser.add_argument_group("Options provided by plugins"))
        ours = {"command": [str(command), "walltime"], "timeout": timeout}
        plugin.configure(parser.parse_args([]), config={"ingest": {"frobnicator": {"kernelcast": ours}}})
        job = Jobspec(**json.loads(json.dumps(jobspec)))
        plugin.frob(job, userid, 16, 0)
        return json.loads(json.dumps(job.jobspec))


@pytest.fixture
def ingest(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The process of plugins; loads ours as Flux does, by its path."""
    modules = {name: ModuleType(name) for name in ("flux", "flux.job", "flux.job.frobnicator")}
    vars(modules["flux.job.frobnicator"])["FrobnicatorPlugin"] = FrobnicatorPlugin
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("kernelcast_of_flux", PLUGIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Ingest(module)
