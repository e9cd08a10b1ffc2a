"""Fingerprints: what decides the speed of a kernel (compute), of a collective (fabric), and with which software.

A fingerprint's `digest` is its key everywhere. Host names, serials, UUIDs, user names and paths are never part of one
(docs/sharing.md): two sites with the same hardware get the same key.
"""

import hashlib
import json
from typing import Any

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.record import Record, record_values

DIGEST_HEX_DIGITS = 32
DESCRIBED = "described"
"""Backend of a fabric that was described, not measured (`described_fabrics`)."""


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text on every machine."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def content_digest(value: Any) -> str:
    """First 128 bits of the SHA-256 of the canonical JSON of `value`, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:DIGEST_HEX_DIGITS]


class _Digested(Record):
    """What the three fingerprints share."""

    __slots__ = ()

    @property
    def digest(self) -> str:
        return content_digest(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name, in the order of names."""
        return dict(sorted(record_values(self).items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeFingerprint(_Digested):
    """One device as a kernel sees it. Fields that do not apply to its kind are 0 or empty."""

    kind: str  # "cpu", "cuda" or "rocm"
    device_name: str
    compute_capability: str = ""
    multiprocessors: int = 0
    memory_gib: int = 0
    max_sm_clock_mhz: int = 0
    max_memory_clock_mhz: int = 0
    power_limit_w: int = 0
    ecc: str = ""
    mig: str = ""
    cores: int = 0
    threads: int = 0
    caches: tuple[str, ...] = ()
    instruction_sets: tuple[str, ...] = ()
    virtualised: bool = False

    @property
    def description(self) -> str:
        """One readable line."""
        if self.kind == "cpu" and self.cores:
            return f"{self.device_name}, {self.cores} cores, {self.threads} thread(s) per process"
        return f"{self.device_name}, {self.memory_gib} GiB" if self.memory_gib else self.device_name


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFingerprint(_Digested):
    """What connects the devices: inside a node (`links`) and between nodes (`nics`)."""

    backend: str  # "gloo" or "nccl", or "described"
    gpus_per_node: int
    links: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """One readable line."""
        if self.backend == DESCRIBED:
            name = self.links[0].partition(" = ")[2].strip('"') if self.links else "fabric"
            return f"{name}, described, {self.gpus_per_node} device(s) per node"
        inside = ", ".join(self.links) or "no links known"
        return f"{self.backend}, {self.gpus_per_node} device(s) per node ({inside})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareFingerprint(_Digested):
    """Versions and settings that change what runs. `environment` is `NAME=value` of known tuning variables."""

    torch: str
    driver: str = ""
    cuda: str = ""
    cudnn: str = ""
    nccl: str = ""
    cpu_libraries: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """One readable line."""
        versions = (
            ("torch", self.torch),
            ("" if self.cuda.startswith("HIP") else "CUDA", self.cuda),
            ("driver", self.driver),
            ("NCCL", self.nccl),
        )
        known = (f"{name} {version}".lstrip() for name, version in versions if version)
        return ", ".join(known) or "versions unknown"
