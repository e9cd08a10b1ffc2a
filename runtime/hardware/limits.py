"""What no operator can be faster than: peaks and sustained rates of a device, its links, its node's network cards."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Self

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.hardware.devices import Device, devices
from kernelcast.runtime.hardware.fabric import adds_up
from kernelcast.runtime.operators import Direction, Operator, OperatorClass
from kernelcast.runtime.operators.operator import evaluate
from kernelcast.runtime.record import Record, above
from kernelcast.runtime.shipped import SUSTAINED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LAUNCH_FLOOR_US = 3.0
"""No kernel is shorter: the shortest of 180,000 measured on an A100 and a GH200 take 3.2 µs."""
_US_PER_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates(Record):
    """Peak rates of a device: of matrix products in one element type, and of its memory."""

    device: str
    flops_per_s: Annotated[float, above(0)]
    bytes_per_s: Annotated[float, above(0)]

    @classmethod
    def of(cls, device: Device, dtype: str) -> Self | None:
        """Rates of a device of the table; None if it does not compute in `dtype`."""
        flops_per_s = device.peak_flops_per_s(dtype)
        if flops_per_s is None:
            return None
        return cls(device=device.name, flops_per_s=flops_per_s, bytes_per_s=device.memory_bytes_per_s)

    def roofline_us(
        self, op: Operator, direction: Direction, vectors: Sequence[Sequence[float]], element_bytes: int
    ) -> "NDArray[np.float64]":
        """Least time of each workload, float64 [vectors] in µs: computing or moving, and the launch of a kernel.

        Only matrix products and attention are limited by computing (Williams et al., CACM 52, 2009).
        """
        import numpy as np  # only here: reading a bundle does not need it

        found: NDArray[np.float64] = np.maximum(*self.parts_us(op, direction, vectors, element_bytes))
        return found + LAUNCH_FLOOR_US

    def parts_us(
        self, op: Operator, direction: Direction, vectors: Sequence[Sequence[float]], element_bytes: int
    ) -> tuple["NDArray[np.float64]", "NDArray[np.float64]"]:
        """Least times of computing and of moving each workload, two float64 [vectors] in µs."""
        import numpy as np

        columns = dict(zip(op.features, np.array(vectors, dtype=np.float64).T, strict=True))
        cost = op.costs[direction]
        moved_us = element_bytes * evaluate(cost.elements, columns) / self.bytes_per_s * _US_PER_S
        is_limited = op.operator_class is OperatorClass.COMPUTE
        computed_us = evaluate(cost.flops, columns) / self.flops_per_s * _US_PER_S if is_limited else 0.0
        return np.broadcast_to(computed_us, len(vectors)), np.broadcast_to(moved_us, len(vectors))


_LAW = "power"
_SHARES = {
    "bfloat16": "",
    "float16": "",
    "float8_e4m3fn": "-float8",
    "float8_e5m2": "-float8",
    "float4_e2m1fn_x2": "-float4",
}
"""Element types that shares are known of, and what is added to the device's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """`share` of peak FLOP/s that nine of ten long matrix products stay below, of `rows`; of 1, a maker's fastest one.

    `burst` is the share that one in a thousand of the short ones exceeds; `source` names the table.
    """

    share: float
    rows: int
    source: str
    burst: float | None = None


@cache
def sustained() -> Mapping[str, Sustained]:
    """By device, with the name of the element type after it where that is not 16 bit; most devices have none."""
    return MappingProxyType({name: Sustained(**row) for name, row in _table().items() if name != _LAW})


def power_exponent(architecture: str) -> float:
    """Sustained rates of one chip at two power limits are as the limits to this power."""
    law = _table()[_LAW]
    return float(law.get(architecture, law["exponent"]))


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(SUSTAINED.read_text(encoding="utf-8"))


def sustained_origin(of: Device, dtype: str = "bfloat16") -> Device | None:
    """The device whose share answers for `of`: itself, or the nearest in power limit of its architecture."""
    if dtype not in _SHARES:
        return None
    known = [one for one in devices().values() if one.name + _SHARES[dtype] in sustained()]
    if of in known:
        return of
    alike = [one for one in known if one.architecture == of.architecture]
    return min(alike, key=lambda one: abs(one.power_w - of.power_w), default=None)


def sustained_flops_per_s(of: Device, dtype: str, power_limit_w: float = 0.0) -> float | None:
    """FLOP/s that GEMMs sustain at a power limit; None if no device of its architecture was measured."""
    peak, origin = of.peak_flops_per_s(dtype), sustained_origin(of, dtype)
    if peak is None or origin is None:
        return None
    return sustained()[origin.name + _SHARES[dtype]].share * peak * clock_scale(of, power_limit_w)


def clock_scale(of: Device, power_limit_w: float = 0.0) -> float:
    """Rates of computing at another power limit over those at the device's own, by a measured law; 1 without one."""
    return (power_limit_w / of.power_w) ** power_exponent(of.architecture) if power_limit_w else 1.0


TOLERANCE = 0.05
"""A time is impossible when it is shorter than a limit by more than this share: clocks and sizes are rounded."""
_CACHES = 2.0
"""Memory limits what moves more than this many times the last-level cache; less may stay in it."""
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
    if device is None:
        return []
    return list(_of_device(op, direction, vector, dtype, element_bytes, variant, device))


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
    """Bytes/s of a node's cards, one way, by texts such as `400 Gb/s InfiniBand ×8`; None for an unknown rate."""
    rates = [_RATE.search(card) for card in cards]
    if not rates or not all(rates):
        return None
    return sum(
        float(rate[1]) * {"G": 1e9, "M": 1e6}[rate[2]] / 8 * int(rate[3] or 1) for rate in rates if rate
    )
