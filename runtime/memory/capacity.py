"""The devices: which kind they are, and does it fit."""

from collections.abc import Iterable
from dataclasses import dataclass

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.memory.stages import StageMemory

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """A stage that needs more than its device has: bytes needed and bytes there."""

    stage: int
    needed_bytes: int
    capacity_bytes: int

    @property
    def message(self) -> str:
        """One line for people."""
        needed, there = self.needed_bytes / GIB, self.capacity_bytes / GIB
        return f"stage {self.stage} needs {needed:.1f} GiB per device, {there:.1f} GiB are there"


def device_kind(compute: Iterable[ComputeFingerprint]) -> str:
    """The kind of devices that memory is counted for: "cpu" where all known ones are CPUs, else "cuda"."""
    return "cpu" if {device.kind for device in compute} == {"cpu"} else "cuda"


def overflows(stages: Iterable[StageMemory], capacity_bytes: int) -> tuple[Overflow, ...]:
    """The stages that do not fit into `capacity_bytes` per device, in order; none when all fit.

    What the driver, the framework's allocator (fragments) and the collectives' library take is not part of a
    stage's memory: leave it off the capacity.
    """
    return tuple(
        Overflow(stage=stage.stage, needed_bytes=stage.total_bytes, capacity_bytes=capacity_bytes)
        for stage in stages
        if stage.total_bytes > capacity_bytes
    )
