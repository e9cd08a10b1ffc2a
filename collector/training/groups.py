"""Which ranks work together and what each holds. Tensor-parallel ranks are neighbours, then data-parallel ones."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Self

import torch.distributed as dist

from kernelcast.collector.measuring.gloo_threads import calm_gloo
from kernelcast.runtime import Parallelism

_Group = dist.ProcessGroup


class GroupCache:
    """Process groups by ranks; all ranks ask in the same order. Collectives fail after `timeout` (None: torch's)."""

    def __init__(self, timeout: timedelta | None = None) -> None:
        self._timeout = timeout
        self._known: dict[tuple[int, ...], _Group] = {}

    def of(self, ranks: tuple[int, ...]) -> _Group:
        """The group of these ranks, created at the first call."""
        if ranks not in self._known:
            self._known[ranks] = dist.new_group(list(ranks), timeout=self._timeout)
            calm_gloo()
        return self._known[ranks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Part `index` of `parts` equal parts, and the group of processes that hold them (None: one part, no group)."""

    index: int = 0
    parts: int = 1
    group: _Group | None = None

    def of(self, size: int) -> slice:
        """This device's part of `size` rows or columns."""
        local = size // self.parts
        return slice(self.index * local, (self.index + 1) * local)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard(Part):
    """What one device holds: its part of every tensor that tensor parallelism cuts, of the sequence, of the experts."""

    context: Part = field(default_factory=Part)
    experts: Part = field(default_factory=Part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """One rank's place in a layout and its groups; a degree of 1 has no group (None).

    `world` are the layout's processes, which may be fewer than were started. `data` are the ranks with the same
    parameters (dp · cp), `expert_data` the ranks with the same experts.
    """

    stage: int
    data_index: int
    shard: Shard
    world: _Group
    pipeline: _Group | None
    data: _Group | None
    expert_data: _Group | None

    @classmethod
    def of(cls, layout: Parallelism, rank: int, cache: GroupCache) -> Self | None:
        """The groups of `rank`; None where the layout does not need it. Every process must call this."""
        world = cache.of(tuple(range(layout.world_size)))
        made = {}
        for kind in KINDS:
            every = dict.fromkeys(members(layout, one, kind) for one in range(layout.world_size))
            made[kind] = {ranks: cache.of(ranks) for ranks in every if len(ranks) > 1}
        if rank >= layout.world_size:
            return None
        stage, data, context, tensor = place(layout, rank)
        own = {kind: groups.get(members(layout, rank, kind)) for kind, groups in made.items()}
        experts = members(layout, rank, "experts").index(rank)
        return cls(
            stage=stage,
            data_index=data,
            shard=Shard(
                index=tensor,
                parts=layout.tp,
                group=own["tensor"],
                context=Part(index=context, parts=layout.cp, group=own["context"]),
                experts=Part(index=experts, parts=layout.ep, group=own["experts"]),
            ),
            world=world,
            pipeline=own["pipeline"],
            data=own["data"],
            expert_data=own["expert_data"],
        )


KINDS = ("pipeline", "data", "tensor", "context", "experts", "expert_data")


def place(layout: Parallelism, rank: int) -> tuple[int, int, int, int]:
    """Stage, data, context and tensor index: rank = ((stage · dp + data) · cp + context) · tp + tensor index."""
    rest, tensor = divmod(rank, layout.tp)
    rest, context = divmod(rest, layout.cp)
    stage, data = divmod(rest, layout.dp)
    return stage, data, context, tensor


def members(layout: Parallelism, rank: int, kind: str) -> tuple[int, ...]:
    """The ranks of this rank's group of a kind, including itself; expert-parallel ranks are neighbours in a stage."""
    per_stage = layout.tp * layout.cp * layout.dp

    def key(one: int) -> tuple[int, ...]:
        stage, data, context, tensor = place(layout, one)
        return {
            "pipeline": (data, context, tensor),
            "data": (stage, tensor),
            "tensor": (stage, data, context),
            "context": (stage, data, tensor),
            "experts": (stage, one % per_stage // layout.ep),
            "expert_data": (stage, one % per_stage % layout.ep),
        }[kind]

    return tuple(one for one in range(layout.world_size) if key(one) == key(rank))
