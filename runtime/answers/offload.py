"""What answers with a host's share rest on: rates that are stated or published, not measured."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelcast.runtime.answers.causes import Cause
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.hardware.host_link import host_link
from kernelcast.runtime.request.layout import Parallelism


def host_link_bytes_per_s(compute: Iterable[ComputeFingerprint]) -> float | None:
    """The published rate of the link between a device and its host, of the first known one; None without."""
    links = (host_link(one.device_name) for one in compute)
    return next((link.bytes_per_s for link in links if link is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadWarning:
    """The host's part of an update, or the copying of activations, was computed from rates."""

    cause: ClassVar[Cause] = Cause.DESCRIBED
    severity: ClassVar[float] = 1.0

    optimizer: float
    activations: float
    link_gb_per_s: float
    memory_gb_per_s: float
    is_published: bool

    def __str__(self) -> str:
        named = (("offload_optimizer", self.optimizer), ("offload_activations", self.activations))
        parts = ", ".join(f"{name} {part:g}" for name, part in named if part)
        source = "published for the device" if self.is_published else "as stated"
        rates = f"{self.link_gb_per_s:g} GB/s between device and host ({source})"
        if self.optimizer:
            rates += f" and {self.memory_gb_per_s:g} GB/s for the host's optimizer (as stated)"
        return f"{parts}: computed, not measured, with {rates}"

    @property
    def topic(self) -> str:
        """What it is about; of several warnings about one thing one is shown."""
        return "offload"

    @property
    def brief(self) -> str:
        """A clause for a line about several operators."""
        return f"what the host takes by rates, {self.link_gb_per_s:g} GB/s over its link"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "cause": self.cause.value,
            "kind": "offload",
            "optimizer": self.optimizer,
            "activations": self.activations,
            "link_gb_per_s": self.link_gb_per_s,
            "memory_gb_per_s": self.memory_gb_per_s,
            "message": str(self),
        }


def offload_warning(layout: Parallelism, link_bytes_per_s: float | None) -> OffloadWarning | None:
    """The warning about a layout, None of one that offloads nothing."""
    if not (layout.offload_optimizer or layout.offload_activations):
        return None
    stated = layout.host_link_gb_per_s
    return OffloadWarning(
        optimizer=layout.offload_optimizer,
        activations=layout.offload_activations,
        link_gb_per_s=stated or (link_bytes_per_s or 0.0) / 1e9,
        memory_gb_per_s=layout.host_memory_gb_per_s,
        is_published=not stated,
    )
