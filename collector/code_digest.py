"""The digest of the code that measures, stored with every sample."""

import hashlib
from pathlib import Path

from kernelcast.runtime.bundle.fingerprint import DIGEST_HEX_DIGITS

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
    """Digest of the source files that determine what is run and timed."""
    digest = hashlib.sha256()
    for pattern in _MEASURING:
        for path in sorted(Path(__file__).parent.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:DIGEST_HEX_DIGITS]
