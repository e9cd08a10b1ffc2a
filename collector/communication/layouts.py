"""Groups of processes that communicate: `per_node` processes on each of `nodes` nodes, as in a training job.

Within one node the processes of a group are neighbours. Over several nodes a group takes every s-th process of each
node; the processes in between belong to other groups, so all devices of a node are in use. All groups of a layout run
at once and share the node's links, as in a step. A layout can also be named by a degree of tensor (tp), data (dp) or
pipeline (pp) parallelism (docs/collecting.md, section 2).
"""

import re
from collections import Counter
from dataclasses import dataclass

from kernelcast.collector.communication.world import World
from kernelcast.runtime.errors import UsageError

_ITEM = re.compile(r"(\d{1,6})x(\d{1,6})|(tp|mp|dp|pp)(\d{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Groups of one shape: `per_node` processes on each of `nodes` nodes. `groups` are ranks, in order."""

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
    """Layouts that `--layouts` names, such as `1x2,tp4`; empty means all possible ones, with sizes in powers of two.

    UsageError for another text, or a layout that these processes cannot form.
    """
    if text.strip():
        shapes = {_named(item.strip(), world) for item in text.split(",")}
    else:
        shapes = {
            (nodes, per_node)
            for nodes in _powers(world.nodes)
            for per_node in _powers(world.local_size)
            if nodes * per_node > 1
        }
    return [
        _layout(*shape, world) for shape in sorted(shapes, key=lambda shape: (shape[0] * shape[1], shape[0]))
    ]


def _named(item: str, world: World) -> tuple[int, int]:
    """Nodes and processes on each."""
    match = _ITEM.fullmatch(item)
    if match is None:
        raise UsageError(
            f"--layouts: found {item!r}, expected NODESxPROCESSES or tp, dp or pp with a size, such as 1x2,tp4"
        )
    if match[3] is None:
        nodes, per_node = int(match[1]), int(match[2])
    else:
        nodes, per_node = _of_degree(match[3], int(match[4]), world)
    if nodes > world.nodes or per_node > world.local_size or nodes * per_node < 2:
        raise UsageError(
            f"--layouts: {item} cannot be formed, found {world.nodes} node(s) with {world.local_size} process(es) "
            f"each; expected groups of 2 to {world.size} processes that fit them"
        )
    return nodes, per_node


def _of_degree(kind: str, degree: int, world: World) -> tuple[int, int]:
    """The shape of the groups of a job on all processes; (0, 0) where the degree does not fit."""
    if not 2 <= degree <= world.size:
        return 0, 0
    if kind in ("tp", "mp"):
        per_node = min(degree, world.local_size)
        return (0, 0) if degree % per_node else (degree // per_node, per_node)
    stride, odd = divmod(world.size, degree)
    if odd:
        return 0, 0
    if kind == "pp":  # pairs of neighbouring stages
        return (2, 1) if stride >= world.local_size else (1, 2)
    most = max(1, world.local_size // stride)
    per_node = next(count for count in range(min(degree, most), 0, -1) if degree % count == 0)
    return degree // per_node, per_node


def _powers(most: int) -> list[int]:
    """Powers of two up to `most`, and `most`."""
    return sorted({1 << exponent for exponent in range(most.bit_length())} | {most})


def _layout(nodes: int, per_node: int, world: World) -> Layout:
    """Groups of one shape; leftover nodes and processes are idle."""
    local = world.local_size
    stride = 1 if nodes == 1 else local // per_node
    firsts = range(0, local - per_node + 1, per_node) if nodes == 1 else range(stride)
    groups = tuple(
        tuple(node * local + first + stride * index for node in among for index in range(per_node))
        for among in (range(node, node + nodes) for node in range(0, world.nodes - nodes + 1, nodes))
        for first in firsts
    )
    return Layout(nodes=nodes, per_node=per_node, groups=groups, processes_per_node=local)
