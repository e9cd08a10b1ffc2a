"""What no operator can be faster than: a device's peaks, its links, and the network cards of its node."""

import re
from collections.abc import Iterable, Sequence

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.hardware.device_links import adds_up
from kernelcast.runtime.hardware.devices import Device
from kernelcast.runtime.operators import Direction, Operator

TOLERANCE = 0.05
"""A time is impossible when it is shorter than a limit by more than this share: clocks and sizes are rounded."""
_CACHES = 2.0
"""Memory limits what moves more than this many times the last-level cache; less may stay in it."""
_US_PER_S = 1e6
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([GM])b(?:it)?(?:/s|/sec|ps)\b.*?(?:×(\d+))?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The shortest time that is possible, and what it follows from: `amount` `unit` at `peak_per_s` of `what`."""

    least_us: float
    amount: float
    unit: str
    peak_per_s: float
    what: str

    def why_impossible(self, time_us: float) -> str:
        """The arithmetic of a time that is too short; empty where the time is possible."""
        if time_us >= self.least_us * (1 - TOLERANCE):
            return ""
        rate = self.amount / time_us * _US_PER_S
        return (
            f"{self.amount:.4g} {self.unit} in {time_us:.6g} µs are {rate:.4g} {self.unit}/s, "
            f"{rate / self.peak_per_s:.2f} times the {self.peak_per_s:.4g} of {self.what}"
        )


def limits(
    op: Operator,
    direction: Direction,
    vector: Sequence[float],
    *,
    dtype: str,
    element_bytes: int,
    variant: str = "",
    device: Device | None = None,
    node_bytes_per_s: float | None = None,
) -> list[Limit]:
    """Limits that are known of a workload; none of an unknown device and network."""
    if op.is_collective:
        return list(_of_collective(op, vector, element_bytes, device, node_bytes_per_s))
    return (
        []
        if device is None
        else list(_of_device(op, direction, vector, dtype, element_bytes, variant, device))
    )


def _of_device(
    op: Operator,
    direction: Direction,
    vector: Sequence[float],
    dtype: str,
    element_bytes: int,
    variant: str,
    device: Device,
) -> Iterable[Limit]:
    flops, peak = op.flops(direction, vector, variant), device.most_flops_per_s(dtype)
    if flops and peak:
        yield _limit(flops, "FLOP", peak, f"a {device.title} in {dtype}")
    moved = op.least_bytes(direction, vector, element_bytes)
    if moved > _CACHES * device.cache_bytes:
        yield _limit(moved, "bytes", device.memory_bytes_per_s, f"a {device.title}'s memory")


def _of_collective(
    op: Operator,
    vector: Sequence[float],
    element_bytes: int,
    device: Device | None,
    node_bytes_per_s: float | None,
) -> Iterable[Limit]:
    if op.wire is None:
        return
    entries, nodes, gpus_per_node = vector
    over_link, over_cards = op.wire(int(nodes), int(gpus_per_node))
    if op.is_reduced and nodes == 1 and device is not None and not any(map(adds_up, device.links)):
        over_link *= 2 * (gpus_per_node - 1) / gpus_per_node  # only the devices add up
    if over_link > 0 and device is not None and device.links:
        link = device.links[0]
        what = f"a {device.title}'s {link.kind}"
        yield _limit(over_link * entries * element_bytes, "bytes", link.bytes_per_s, what)
    if over_cards > 0 and node_bytes_per_s:
        yield _limit(
            over_cards * entries * element_bytes, "bytes", node_bytes_per_s, "a node's network cards"
        )


def _limit(amount: float, unit: str, peak_per_s: float, what: str) -> Limit:
    return Limit(
        least_us=amount / peak_per_s * _US_PER_S, amount=amount, unit=unit, peak_per_s=peak_per_s, what=what
    )


def node_bytes_per_s(cards: Sequence[str]) -> float | None:
    """What a node's network cards send per second in one direction: the sum of texts such as `400 Gb/s InfiniBand ×8`.

    None where a card's rate is not known.
    """
    rates = [_RATE.search(card) for card in cards]
    if not rates or not all(rates):
        return None
    return sum(
        float(rate[1]) * {"G": 1e9, "M": 1e6}[rate[2]] / 8 * int(rate[3] or 1) for rate in rates if rate
    )
