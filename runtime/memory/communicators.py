"""NCCL's buffers, which torch's allocator does not count: by the communicators of a layout."""

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.request.layout import Parallelism

_MIB = 1 << 20
_EACH_BYTES = (392 * _MIB, 688 * _MIB)
"""One communicator of 4 or 8 GPUs of a node: `nccl_mem` in aiconfigurator's system files, and 4 A100 (NCCL issue 964).

By the code it is 10 MiB per channel and connection: 4 MiB, 4.7 MiB (LL128) and 0.5 MiB (LL), in pages of 2 MiB
(init.cc, `computeBuffSizes`); how many channels NCCL opens depends on the links.
"""
_ALL_TO_ALL_BYTES = 3_280_000_000
"""What the first all-to-all of 8 H100 added: connections to every peer on 32 channels (NCCL issue 1685)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicatorBuffers:
    """The groups of one device that communicate, and the least and most bytes of their buffers."""

    groups: tuple[str, ...]
    least_bytes: int
    most_bytes: int


def communicator_buffers(layout: Parallelism) -> CommunicatorBuffers:
    """The communicators that a layout's collectives need: torch opens a group's at its first collective.

    Not part of a stage's memory: `reserved_bytes` of a device holds them.
    """
    exchanged = layout.ep > 1 and layout.expert_dispatcher == "all_to_all"
    exchanged_context = layout.cp > 1 and layout.context_exchange == "all_to_all"
    degrees = {
        "tp": layout.tp,
        "cp": layout.cp,
        "pp": layout.pp,
        "dp": layout.replicas,
        "ep": layout.ep,
        "expert tp": layout.expert_tp,
        "expert dp": layout.expert_replicas if layout.ep * layout.expert_tp > 1 else 1,
    }
    groups = tuple(name for name, size in degrees.items() if size > 1)
    more = (exchanged + exchanged_context) * _ALL_TO_ALL_BYTES
    least, most = (len(groups) * each for each in _EACH_BYTES)
    return CommunicatorBuffers(groups=groups, least_bytes=least, most_bytes=most + more)
