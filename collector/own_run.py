"""The run of measurements on this machine with this code."""

from importlib.metadata import version
from typing import Any

from kernelcast.collector.code_digest import code_digest
from kernelcast.collector.machine.probe import Fingerprints
from kernelcast.store import Run, utc_now


def own_run(command: str, keys: Fingerprints, *, has_fabric: bool = True, **more: Any) -> Run:
    """A run that starts now; `more` are its other fields."""
    return Run(
        started_at=utc_now(),
        kernelcast_version=version("kernelcast"),
        code_digest=code_digest(),
        command=command,
        compute_id=keys.compute.digest,
        fabric_id=keys.fabric.digest if has_fabric else None,
        software_id=keys.software.digest,
        **more,
    )
