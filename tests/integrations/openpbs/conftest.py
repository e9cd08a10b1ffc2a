"""The server's side of OpenPBS hooks: the module `pbs` as pbs_module(7B) documents it, and how a hook is run."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

HOOK = Path(__file__).parents[3] / "integrations" / "openpbs" / "kernelcast_hook.py"


class Duration(int):
    """pbs.duration: whole seconds."""


class Resources:
    """A job's Resource_List: a resource that was not requested is None, and a walltime is a pbs.duration."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self.asked = dict(asked)

    def __getitem__(self, name: str) -> Any:
        return self.asked.get(name)

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "walltime" and not isinstance(value, Duration):
            raise TypeError("BadResourceValueTypeError")
        self.asked[name] = value


@dataclass(frozen=True, kw_only=True)
class Queued:
    """What became of a job: its resources, and what stands in the server's log."""

    resources: Mapping[str, Any]
    log: list[str] = field(default_factory=list)

    @property
    def walltime(self) -> int | None:
        """Seconds."""
        value: int | None = self.resources.get("walltime")
        return value


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Queued]:
    """Queues a job: runs the hook as PBS does, which rejects the job when an exception comes out."""

    def run(
        variables: Mapping[str, str] | None,
        *,
        command: Path,
        timeout: float = 300,
        **resources: Any,
    ) -> Queued:
        log: list[str] = []
        job = SimpleNamespace(Resource_List=Resources(resources), Variable_List=variables, Job_Name="train")
        event = SimpleNamespace(job=job, type=1)
        pbs = ModuleType("pbs")
        vars(pbs).update(
            event=lambda: event,
            duration=Duration,
            logmsg=lambda level, text: log.append(text),
            LOG_WARNING=4,
        )
        monkeypatch.setitem(sys.modules, "pbs", pbs)
        source = HOOK.read_text()
        for there, here in (
            ('["/usr/local/bin/kernelcast", "walltime"]', f'["{command}", "walltime"]'),
            ("TIMEOUT_S = 5.0", f"TIMEOUT_S = {timeout}"),
        ):
            assert source.count(there) == 1
            source = source.replace(there, here)
        exec(compile(source, "kernelcast_hook", "exec"), {"__name__": "__main__"})
        return Queued(resources=job.Resource_List.asked, log=log)

    return run
