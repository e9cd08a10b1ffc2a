"""How many processes of a node compute at once: operators slow each other, and bundles hold what was measured of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelcast.runtime.answers.causes import Cause
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.request.layout import Cluster, Parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyWarning:
    """A step keeps `asked` processes of a node busy, and operators were measured with fewer processes only."""

    cause: ClassVar[Cause] = Cause.EXTRAPOLATED
    topic: ClassVar[str] = "processes of a node"

    asked: int
    measured: tuple[int, ...]

    def __str__(self) -> str:
        levels = ", ".join(map(str, self.measured))
        return (
            f"{self.asked} processes of a node compute at once, and operators were measured with {levels} of them: "
            f"more slow each other down (kernelcast collect compute --procs-per-node {self.asked})"
        )

    @property
    def severity(self) -> float:
        """How many times the most processes that were measured."""
        return self.asked / max(self.measured)

    @property
    def brief(self) -> str:
        """A clause for a line."""
        return f"{self.asked} processes of a node compute at once, measured with at most {max(self.measured)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "cause": self.cause.value,
            "kind": "concurrency",
            "asked": self.asked,
            "measured": list(self.measured),
            "message": str(self),
        }


def processes_on_a_node(parallelism: Parallelism, cluster: Cluster) -> int:
    """Processes on the fullest node: one per device."""
    return min(parallelism.world_size, cluster.gpus_per_node)


def concurrency_warning(
    compute: Sequence[ComputeFingerprint], levels: Sequence[int], processes: int
) -> ConcurrencyWarning | None:
    """A warning where more processes share a CPU than operators were measured with; GPUs have memory of their own."""
    on_cpu = any(device.kind == "cpu" for device in compute)
    if not on_cpu or not levels or processes <= max(levels):
        return None
    return ConcurrencyWarning(asked=processes, measured=tuple(levels))
