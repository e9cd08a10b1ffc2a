"""The digest of the code that measures: samples made by other code are told apart."""

import hashlib
from pathlib import Path

from kernelcast.runtime.fingerprint import DIGEST_HEX_DIGITS

# What a sample's time depends on; changes elsewhere leave the digest as it is.
_MEASURING = (
    "attribution.py",
    "benches/*.py",
    "cache_state.py",
    "clipping.py",
    "collectives.py",
    "comm_timing.py",
    "companion_worker.py",
    "companions.py",
    "core_binding.py",
    "disturbance.py",
    "harness.py",
    "host_memory.py",
    "kineto.py",
    "layers.py",
    "layouts.py",
    "measuring.py",
    "mixed_precision.py",
    "peers.py",
    "reference.py",
    "stage_parameters.py",
    "trace_file.py",
    "training/*.py",
    "vocabulary_parallel.py",
)


def code_digest() -> str:
    """Digest of the source files that decide what is run and timed."""
    digest = hashlib.sha256()
    for pattern in _MEASURING:
        for path in sorted(Path(__file__).parent.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:DIGEST_HEX_DIGITS]
