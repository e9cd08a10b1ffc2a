"""The run of measurements on this machine with this code, whose digest it carries."""

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kernelcast.collector.machine.probe import Fingerprints
from kernelcast.runtime.bundle.fingerprint import DIGEST_HEX_DIGITS
from kernelcast.store import Run, utc_now

# Files that a sample's time depends on.
_MEASURING = (
    "benches/*.py",
    "communication/collectives.py",
    "communication/layouts.py",
    "communication/peers.py",
    "communication/timing.py",
    "functions/*.py",
    "measuring/*.py",
    "traces/*.py",
    "training/*.py",
)


def code_digest() -> str:
    """Digest of the source files that determine the measured code and its timing."""
    digest = hashlib.sha256()
    for pattern in _MEASURING:
        for path in sorted(Path(__file__).parent.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:DIGEST_HEX_DIGITS]


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
