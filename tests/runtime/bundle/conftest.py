"""A bundle of one regressor, whose file and manifest are changed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime.bundle.file import Manifest, write_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.operators import Direction

GELU, COPY = ("gelu", Direction.FORWARD), b"not a real model, only bytes"
Make = Callable[..., Any]


@pytest.fixture
def small(regressor: Make, manifest: Make) -> Manifest:
    """One regressor and one fingerprint of each kind."""
    filled = replace(
        manifest([regressor(GELU, COPY)], fabric=[FabricFingerprint(backend="gloo", gpus_per_node=2)]),
        compute=(ComputeFingerprint(kind="cpu", device_name="Some CPU", cores=2, caches=("L1d 32 KiB",)),),
        software=(SoftwareFingerprint(torch="2.13.0", environment=("OMP_NUM_THREADS=1",)),),
    )
    assert isinstance(filled, Manifest)
    return filled


@pytest.fixture
def content(small: Manifest, tmp_path: Path) -> bytes:
    """The bytes of a valid bundle."""
    write_bundle(tmp_path / "valid.kcast", small, {"models/gelu.forward.onnx": COPY})
    return (tmp_path / "valid.kcast").read_bytes()
