"""Exchanges between processes: one law per collective, whichever group calls it, and one for a message between two.

`entries` is what one process puts in: the buffer of an all-reduce or a message, its shard of an all-gather, its whole
input of a reduce-scatter or an all-to-all.
"""

from collections.abc import Mapping
from typing import Any

from kernelcast.runtime.operators.operator import (
    Direction,
    Operator,
    OperatorClass,
    Role,
    Substitute,
    Wire,
    cost,
    roles,
)

_LAYOUT = {"entries": "elements", "nodes": "nodes", "gpus_per_node": "devices"}


def _collective(
    name: str, title: str, elements: str, called_as: Mapping[str, Role], *, wire: Wire, **others: Any
) -> Operator:
    return Operator(
        name=name,
        title=title,
        operator_class=OperatorClass.COMMUNICATION,
        features=_LAYOUT,
        costs={Direction.ONCE: cost(elements=elements)},
        roles=called_as,
        wire=wire,
        **others,
    )


# A ring all-reduce is a reduce-scatter followed by an all-gather of the same data (Patarasuk and Yuan, J. Parallel
# Distrib. Comput. 69, 2009, doi 10.1016/j.jpdc.2008.09.002): half of one answers for either.
ALL_REDUCE = _collective(
    "all_reduce",
    "entries of all processes summed, the sum on every process",
    "2 entries",
    roles(
        ("tensor", "MP_All-reduce", "activations summed across the tensor-parallel group"),
        ("data", "DP_All-reduce", "gradients summed across the data-parallel group"),
        ("expert_data", "", "gradients of experts summed across the devices that hold the same"),
    ),
    ring_passes=(2, 0, -2),
    # Reduced by the switches, everything is still sent once and received once.
    wire=lambda nodes, gpus: (float(gpus > 1), float(nodes > 1)),
    is_in_place=True,
    is_reduced=True,
)

ALL_GATHER = _collective(
    "all_gather",
    "shards of all processes gathered on every process; entries are one process's shard",
    "1 entries nodes gpus_per_node",
    roles(
        ("tensor", "MP_All-gather", "sequence shards gathered across the tensor-parallel group"),
        ("data", "DP_All-gather", "updated parameters gathered across the data-parallel group"),
        ("expert_data", "", "updated experts gathered across the devices that hold the same"),
        ("expert_tensor", "", "rows of experts that are cut gathered across the devices that share them"),
        ("context", "", "keys and values of all parts of the sequence gathered"),
    ),
    ring_passes=(-1, 1, 0),
    # Shards of other nodes may come in once each, and by the device's own card.
    wire=lambda nodes, gpus: (gpus - 1, (nodes - 1) * gpus),
    is_sharded=True,
    substitute=Substitute(operator="all_reduce", factor=0.5, gathered=True),
)

REDUCE_SCATTER = _collective(
    "reduce_scatter",
    "entries of all processes summed, a shard of the sum on every process; entries are one process's input",
    "1 entries",
    roles(
        ("tensor", "MP_Reduce-scatter", "activations summed and split along the sequence"),
        ("data", "DP_Reduce-scatter", "gradients summed and split across the data-parallel group"),
        ("expert_data", "", "gradients of experts summed and split across the devices that hold the same"),
        (
            "expert_tensor",
            "",
            "results of experts that are cut summed and split across the devices that share them",
        ),
        ("context", "", "gradients of keys and values summed and split along the sequence"),
    ),
    ring_passes=(1, 0, -1),
    # A node may reduce before it sends.
    wire=lambda nodes, gpus: ((gpus - 1) / (nodes * gpus), (nodes - 1) / nodes),
    is_divided=True,
    substitute=Substitute(operator="all_reduce", factor=0.5),
)

ALL_TO_ALL = _collective(
    "all_to_all",
    "an equal part of the entries sent from every process to every other; entries are one process's input",
    "2 entries",
    roles(
        ("expert", "", "tokens sent to their experts, and back, across the expert-parallel group"),
        (
            "context",
            "",
            "heads of all tokens for tokens of all heads, and back, across the context-parallel group",
        ),
    ),
    ring_passes=(1, 0, -1),
    wire=lambda nodes, gpus: ((gpus - 1) / (nodes * gpus), gpus * (nodes - 1) / nodes),
    is_divided=True,
    is_pairwise=True,
)

POINT_TO_POINT = _collective(
    "point_to_point",
    "entries sent from one process to another",
    "1 entries",
    roles(
        ("pipeline", "PP_P2P", "activations or their gradients sent to the neighbouring stage"),
        ("context", "", "keys and values of a part of the sequence sent on around the ring"),
    ),
    ring_passes=(1, 0, 0),
    wire=lambda nodes, gpus: (float(nodes == 1), float(nodes > 1)),
)
