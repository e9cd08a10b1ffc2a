"""Which groups of processes communicate, as tensor (tp), data (dp) and pipeline (pp) parallelism form them.

With G processes on each node (docs/collecting.md, section 2): tp groups are neighbours; dp groups take every s-th
process of their nodes, the s between them being tensor-parallel; a pp pair is a process and its counterpart in the
next stage. All groups of a layout run at once, as in a step, where they share the node's links.
"""

import re
from collections import Counter
from dataclasses import dataclass

from kernelcast.collector.communication.world import World
from kernelcast.runtime.errors import UsageError

MP, DP, PP = "tp", "dp", "pp"

_ITEM = re.compile(r"(\d{1,6})x(\d{1,6})|(tp|dp|pp)(\d{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Groups of one kind and shape: `per_node` processes on each of `nodes` nodes. `groups` are ranks, in order."""

    kind: str
    nodes: int
    per_node: int
    groups: tuple[tuple[int, ...], ...]
    processes_per_node: int

    @property
    def size(self) -> int:
        """Processes in a group."""
        return self.nodes * self.per_node

    @property
    def groups_per_node(self) -> int:
        """Groups that share a node."""
        touched = Counter(
            node for group in self.groups for node in {rank // self.processes_per_node for rank in group}
        )
        return max(touched.values())


def layouts(text: str, world: World) -> list[Layout]:
    """What `--layouts` names, such as `1x2,mp4`; empty is all that the world can form, sizes in powers of two.

    Raises:
        UsageError: something else, or a layout that these processes cannot form.
    """
    found: dict[tuple[str, int, int], Layout] = {}
    named = [part.strip() for part in text.split(",")] if text.strip() else []
    chosen = [layout for item in named for layout in _named(item, world)] if named else _all(world)
    for layout in chosen:
        found.setdefault((layout.kind, layout.nodes, layout.per_node), layout)
    return sorted(found.values(), key=lambda layout: (layout.size, layout.nodes))


def _named(item: str, world: World) -> list[Layout]:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise UsageError(
            f"--layouts: found {item!r}, expected NODESxPROCESSES or tp, dp or pp with a size, such as 1x2,mp4"
        )
    if match[3] is None:
        nodes, per_node = int(match[1]), int(match[2])
        if not (1 <= nodes <= world.nodes and 1 <= per_node <= world.local_size) or nodes * per_node < 2:
            raise _impossible(item, world)
        return _of_shape(nodes, per_node, world)
    kind, size = match[3], int(match[4])
    if size < 2 or size > world.size:
        raise _impossible(item, world)
    if kind == MP:
        if size > world.local_size and size % world.local_size:
            raise _impossible(item, world)
        per_node = min(size, world.local_size)
        return [_neighbours(size // per_node, per_node, world)]
    if world.size % size:
        raise _impossible(item, world)
    stride = world.size // size
    if kind == PP:
        return [_pairs(2 if stride >= world.local_size else 1, world)]
    most = max(1, world.local_size // stride)
    per_node = next(count for count in range(min(size, most), 0, -1) if size % count == 0)
    if size // per_node > world.nodes:
        raise _impossible(item, world)
    return [_spread(size // per_node, per_node, world)]


def _impossible(item: str, world: World) -> UsageError:
    return UsageError(
        f"--layouts: {item} cannot be formed, found {world.nodes} node(s) with {world.local_size} process(es) each; "
        f"expected groups of 2 to {world.size} processes that fit them"
    )


def _all(world: World) -> list[Layout]:
    return [
        layout
        for nodes in _powers(world.nodes)
        for per_node in _powers(world.local_size)
        if nodes * per_node > 1
        for layout in _of_shape(nodes, per_node, world)
    ]


def _powers(most: int) -> list[int]:
    """Powers of two up to `most`, and `most`."""
    return sorted({1 << exponent for exponent in range(most.bit_length())} | {most})


def _of_shape(nodes: int, per_node: int, world: World) -> list[Layout]:
    found = [_spread(nodes, per_node, world)]
    if nodes == 1 or per_node == world.local_size:
        found.append(_neighbours(nodes, per_node, world))
    if nodes * per_node == 2:
        found.append(_pairs(nodes, world))
    return found


def _layout(
    kind: str, nodes: int, per_node: int, world: World, groups: list[list[tuple[int, int]]]
) -> Layout:
    """From groups as (node, place on it)."""
    return Layout(
        kind=kind,
        nodes=nodes,
        per_node=per_node,
        groups=tuple(tuple(node * world.local_size + place for node, place in group) for group in groups),
        processes_per_node=world.local_size,
    )


def _node_sets(nodes: int, world: World) -> list[range]:
    """As many sets of so many nodes as there are; nodes that are left over have nothing to do."""
    return [range(first, first + nodes) for first in range(0, world.nodes - nodes + 1, nodes)]


def _neighbours(nodes: int, per_node: int, world: World) -> Layout:
    groups = [
        [(node, place) for node in among for place in range(first, first + per_node)]
        for among in _node_sets(nodes, world)
        for first in range(0, world.local_size - per_node + 1, per_node)
    ]
    return _layout(MP, nodes, per_node, world, groups)


def _spread(nodes: int, per_node: int, world: World) -> Layout:
    stride = world.local_size // per_node
    groups = [
        [(node, first + stride * index) for node in among for index in range(per_node)]
        for among in _node_sets(nodes, world)
        for first in range(stride)
    ]
    return _layout(DP, nodes, per_node, world, groups)


def _pairs(nodes: int, world: World) -> Layout:
    """Sender and receiver: across two nodes, or the first and the second half of one."""
    if nodes == 2:
        groups = [
            [(among[0], place), (among[1], place)]
            for among in _node_sets(2, world)
            for place in range(world.local_size)
        ]
    else:
        half = world.local_size // 2
        groups = [
            [(node, place), (node, place + half)] for node in range(world.nodes) for place in range(half)
        ]
    return _layout(PP, nodes, 2 // nodes, world, groups)
