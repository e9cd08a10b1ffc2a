"""What a host does where states or activations lie in its memory: rates, not measurements (docs/method.md)."""

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.step.optimizers import moved_bytes

_BYTES_PER_US = 1e3
"""Of 1 GB/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Rates of a device's host in bytes per µs: of the link in each direction, of its memory (0: not needed)."""

    link: float
    memory: float

    @classmethod
    def of(cls, layout: Parallelism, link_bytes_per_s: float | None) -> "Host | None":
        """The host of a layout that offloads; the link's rate is the layout's, else `link_bytes_per_s`.

        Raises:
            UsageError: a rate that is needed is not known.
        """
        if not (layout.offload_optimizer or layout.offload_activations):
            return None
        stated = layout.host_link_gb_per_s * _BYTES_PER_US
        link = stated or (link_bytes_per_s or 0.0) / 1e6
        if not link:
            raise UsageError(
                field="host_link_gb_per_s",
                found=0,
                expected="the rate between device and host in GB/s: "
                "the device table has none for the bundle's device",
            )
        if layout.offload_optimizer and not layout.host_memory_gb_per_s:
            raise UsageError(
                field="host_memory_gb_per_s",
                found=0,
                expected="the GB/s that the host's optimizer reads and writes for a device, "
                "as offload_optimizer is above 0",
            )
        return cls(link=link, memory=layout.host_memory_gb_per_s * _BYTES_PER_US)

    def update_us(
        self, layout: Parallelism, parameters: int, *, gradient_bytes: int, weight_bytes: int
    ) -> float:
        """Time in µs of the part of an update in which the host updates `parameters`.

        Their gradients come over the link, the optimizer reads and writes its states, weights and gradients in the
        host's memory with a copy of the weights in the training's type, and that copy goes back: one after the other.
        """
        moved = moved_bytes(layout.optimizer, layout.optimizer_states) + weight_bytes
        sent = gradient_bytes + weight_bytes
        return parameters * (sent / self.link + moved / self.memory)
