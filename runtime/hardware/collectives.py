"""Times of collectives on a described fabric, and what the wire allows at most (docs/fabrics.md, The law).

Every algorithm is latency plus volume over rate, per level. A ring over n nodes with g processes each crosses
every link inside of a node and the node's cards; a tree exchanges along chains inside of nodes; a switch that adds up
takes each process's data once. The faster level is hidden behind the slower one, but for one part in n, which can
only be forwarded when it has arrived. The fastest algorithm and protocol counts, as with a library's tuner.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.fabric import Between, Fabric, Inside
from kernelcast.runtime.operators import OPERATORS, Operator

Times = NDArray[np.float64]

LAUNCH_US = 6.0
"""Before the first byte moves: launch of the kernel (smallest messages of NCCL 2.27 to 2.29 on A100 to B200)."""
LOW_LATENCY_SHARE = 0.55
"""Rate of protocols that send a flag with every word, as a share of the reached rate; they need no start-up."""
_ALL_REDUCE_ROUNDS = 2
"""A ring of p processes takes p - 1 steps; an all-reduce is two of them, a reduce-scatter and an all-gather."""
_MESSAGE = (1, 0, 0)
"""Ring passes of a message between two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelScale:
    """What measured rows make of a level: factors of its latencies and of its times per byte."""

    latency: float = 1.0
    per_byte: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Factors of both levels, found from measured rows (`correction.py`)."""

    inside: LevelScale = LevelScale()
    between: LevelScale = LevelScale()


UNCORRECTED = Correction()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where a collective runs: a group of `nodes` × `gpus_per_node`, `groups` share a node's cards."""

    fabric: Fabric
    nodes: int
    gpus_per_node: int
    groups: int = 1

    def __post_init__(self) -> None:
        fabric, nodes, gpus = self.fabric, self.nodes, self.gpus_per_node
        if min(nodes, gpus, self.groups) < 1 or nodes * gpus < 2:
            raise UsageError(f"layout is {nodes} × {gpus}, expected at least two processes")
        if nodes > 1 and fabric.between is None:
            raise UsageError(
                f"fabric {fabric.name}: layout {nodes} × {gpus} spans nodes, and it has no [between]"
            )
        if gpus > fabric.devices_per_node:
            raise UsageError(
                f"fabric {fabric.name}: layout {nodes} × {gpus} has more devices per node than its "
                f"{fabric.devices_per_node}"
            )

    @property
    def processes(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def inside(self) -> Inside | None:
        """Links that the group uses inside of its nodes."""
        return self.fabric.inside if self.gpus_per_node > 1 else None

    @property
    def between(self) -> Between | None:
        """Cards that the group uses between its nodes."""
        return self.fabric.between if self.nodes > 1 else None

    @property
    def cards(self) -> float:
        """Cards of a node for the group: its devices' cards, at least one if it is alone, and its share."""
        if self.fabric.between is None:
            return 0.0
        cards, devices = self.fabric.between.cards, self.fabric.devices_per_node
        return min(max(1.0, self.gpus_per_node * cards / devices), cards / self.groups)

    @property
    def most_cards(self) -> float:
        """Most cards that it can use: its own devices' cards on rails, behind one switch all that others leave."""
        between = self.fabric.between
        if between is None or between.topology == "rails":
            return self.cards
        return between.cards / self.groups


@dataclass(frozen=True, slots=True)
class Terms:
    """What one algorithm takes per level, in µs: its steps, the start-up, and moving its bytes [sizes]."""

    inside_steps_us: float
    between_steps_us: float
    inside_startup_us: float
    between_startup_us: float
    inside_us: Times
    between_us: Times
    has_low_latency: bool


def collective_us(
    operator: str,
    message_bytes: ArrayLike,
    setting: Setting,
    *,
    correction: Correction = UNCORRECTED,
    quality: float | Times = 0.0,
) -> Times:
    """Time in µs, float64 like `message_bytes`, which is what one process puts in; at least `least_us`. `quality` -1 to
    1 goes from the lowest to the highest efficiency of the fabric; of several, [qualities, 1], times are [qualities,
    sizes]. UsageError where the fabric has no such layout, or the operator is no collective.
    """
    size = np.asarray(message_bytes, dtype=np.float64)
    fastest = np.full(size.shape, np.inf)
    inside, between = correction.inside, correction.between
    for one in terms_of(operator, size, setting, quality=quality):
        inside_us, between_us = inside.per_byte * one.inside_us, between.per_byte * one.between_us
        moving_us = np.maximum(inside_us, between_us) + np.minimum(inside_us, between_us) / setting.nodes
        steps_us = inside.latency * one.inside_steps_us + between.latency * one.between_steps_us
        startup_us = inside.latency * one.inside_startup_us + between.latency * one.between_startup_us
        times_us = protocol_us(one, steps_us=steps_us, startup_us=startup_us, moving_us=moving_us)
        fastest = np.minimum(fastest, times_us)
    found: Times = np.maximum(fastest, least_us(operator, size, setting))
    return found


def protocol_us(
    algorithm: Terms, *, steps_us: Times | float, startup_us: Times | float, moving_us: Times
) -> Times:
    """Time in µs with the better of two protocols: full rate after a start-up, or a part of the rate at once."""
    found: Times = startup_us + moving_us
    if algorithm.has_low_latency:
        found = np.minimum(found, moving_us / LOW_LATENCY_SHARE)
    return LAUNCH_US + steps_us + found


def least_us(operator: str, message_bytes: ArrayLike, setting: Setting) -> Times:
    """Time in µs that no algorithm is faster than, with links and cards at full rates: data moves once where switches
    add up, else as in a ring (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009).
    """
    size = np.asarray(message_bytes, dtype=np.float64)
    fabric, inside, between = setting.fabric, setting.inside, setting.between
    volume = ring_bytes(operator, size, setting.processes)
    is_reduced = collective(operator).is_reduced
    once = np.minimum(size, volume)
    card_bytes_per_s = 0.0 if between is None else setting.most_cards * between.bytes_per_s
    device_bytes_per_s = card_bytes_per_s / setting.gpus_per_node
    if inside is not None:
        device_bytes_per_s += inside.group_bytes_per_s(setting.gpus_per_node, fabric.devices_per_node)
    adds_up = is_reduced and (
        (inside is not None and inside.in_switch_reduction)
        or (between is not None and between.in_network_reduction)
    )
    least = (once if adds_up else volume) / device_bytes_per_s
    if between is not None and card_bytes_per_s:
        least = np.maximum(least, _node_bytes(operator, size, setting) / card_bytes_per_s)
    return least * 1e6


def ring_bytes(operator: str, message_bytes: Times, processes: int) -> Times:
    """Bytes that each process of a ring sends (`Operator.ring_passes`)."""
    passes = collective(operator).ring_passes
    assert passes is not None
    constant, linear, inverse = passes
    return message_bytes * (constant + linear * processes + inverse / processes)


def collective(operator: str) -> Operator:
    """The row of a collective; UsageError where the name is unknown."""
    row = OPERATORS.get(operator)
    if row is None or not row.is_collective:
        raise UsageError(field="operator", found=operator, expected="a collective")
    return row


def whole_bytes(operator: str, message_bytes: Times | float, processes: int) -> Times | float:
    """Bytes of the whole message, where `message_bytes` are those that one process puts in."""
    return message_bytes * (processes if collective(operator).is_sharded else 1)


def _node_bytes(operator: str, size: Times, setting: Setting) -> Times:
    """Bytes that leave a node under the best algorithm, which adds up or copies inside of nodes."""
    row, between = collective(operator), setting.between
    assert row.wire is not None
    if row.is_reduced and not (between is not None and between.in_network_reduction):
        return 2 * size * (setting.nodes - 1) / setting.nodes
    _, over_cards = row.wire(setting.nodes, setting.gpus_per_node)
    return over_cards * size


def terms_of(
    operator: str, size: Times, setting: Setting, *, quality: float | Times = 0.0
) -> Iterator[Terms]:
    """Every algorithm that a collective library has for `operator`."""
    inside, between, fabric = setting.inside, setting.between, setting.fabric
    for one in _algorithms(operator, size, setting, quality):
        inside_us = between_us = np.zeros(size.shape)
        if inside is not None:
            rate = inside.group_bytes_per_s(setting.gpus_per_node, fabric.devices_per_node)
            inside_us = one.inside_bytes / (one.inside_share * rate) * 1e6
        if between is not None:
            share = between.share_at(quality)
            between_us = one.between_bytes / (share * setting.cards * between.bytes_per_s) * 1e6
        yield Terms(
            inside_steps_us=0.0 if inside is None else one.inside_steps * inside.latency_us,
            between_steps_us=0.0 if between is None else one.between_steps * between.latency_us,
            inside_startup_us=0.0 if inside is None else inside.startup_us,
            between_startup_us=0.0 if between is None else one.between_steps * between.startup_us,
            inside_us=inside_us,
            between_us=between_us,
            has_low_latency=one.has_low_latency,
        )


@dataclass(frozen=True, slots=True)
class _Algorithm:
    """Steps and bytes per level, of one process inside a node and of the whole group's cards between nodes.

    `inside_share` is the share of the links' rate that it reaches; `has_low_latency`: it has a protocol without
    start-up.
    """

    inside_steps: float
    between_steps: float
    inside_bytes: Times
    between_bytes: Times
    inside_share: float | Times
    has_low_latency: bool = True


def _algorithms(operator: str, size: Times, setting: Setting, quality: float | Times) -> Iterator[_Algorithm]:
    p, n, g = setting.processes, setting.nodes, setting.gpus_per_node
    inside = setting.inside
    share = 1.0 if inside is None else inside.share_at(quality)
    volume = ring_bytes(operator, size, p)
    row = collective(operator)
    if row.ring_passes == _MESSAGE:
        yield _Algorithm(1.0 * (n == 1), 1.0 * (n > 1), volume, volume, share)
        return
    steps = _ALL_REDUCE_ROUNDS if row.is_reduced else 1
    if row.is_pairwise:
        yield _direct(size, setting, share)
        return
    yield _Algorithm(
        # Every step of a ring over several nodes waits for a message between two of them.
        inside_steps=steps * (g - 1) if n == 1 else 0,
        between_steps=steps * (p - 1) if n > 1 else 0,
        inside_bytes=volume * ((g - 1) / g if n > 1 else 1.0),
        between_bytes=volume,
        inside_share=share,
    )
    if not row.is_reduced:
        return
    hops = 2 * math.ceil(math.log2(n)) if n > 1 else 0
    yield _Algorithm(2 * (g - 1), hops, 2 * size, 2 * size, share)
    # NCCL takes the switch where a group fills the node (data/nccl-tests: with 8 of 8 devices, not with 4).
    if inside is not None and inside.in_switch_reduction and g == setting.fabric.devices_per_node:
        share = inside.in_switch_share_at(quality)
        yield _Algorithm(2, hops, size, 2 * size, share, has_low_latency=False)


def _direct(size: Times, setting: Setting, share: float | Times) -> _Algorithm:
    """All-to-all: every pair directly; on rails, what is for another rail crosses the node first."""
    p, n, g = setting.processes, setting.nodes, setting.gpus_per_node
    between = setting.between
    within, beyond = size * (g - 1) / p, size * g * (n - 1) / n
    if between is not None and between.topology == "rails":
        within = within + size * (p - g) / p * (g - 1) / g
    return _Algorithm(g - 1, (n - 1) * 1.0, within, beyond, share)
