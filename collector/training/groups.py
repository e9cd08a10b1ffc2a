"""Which ranks work together: tensor-parallel groups are neighbouring ranks, then data parallel, then stages."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

import torch.distributed as dist

from kernelcast.collector.measuring.gloo_threads import calm_gloo
from kernelcast.runtime import Parallelism

_Group = dist.ProcessGroup


class GroupCache:
    """Process groups by their ranks; every process of the world asks for the same ones in the same order.

    An operation of theirs that takes longer than `timeout` fails; None is torch's own limit.
    """

    def __init__(self, timeout: timedelta | None = None) -> None:
        self._timeout = timeout
        self._known: dict[tuple[int, ...], _Group] = {}

    def of(self, ranks: tuple[int, ...]) -> _Group:
        """The group of these ranks, made at the first question."""
        if ranks not in self._known:
            self._known[ranks] = dist.new_group(list(ranks), timeout=self._timeout)
            calm_gloo()
        return self._known[ranks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """One rank's place in a layout and its groups; a degree of 1 has no group (None).

    `world` holds the layout's processes, which may be fewer than were started.
    """

    stage: int
    data_index: int
    tensor_index: int
    world: _Group
    pipeline: _Group | None
    data: _Group | None
    tensor: _Group | None

    @classmethod
    def of(cls, layout: Parallelism, rank: int, cache: GroupCache) -> Self | None:
        """The groups of `rank`; None where the layout does not need it. To be called by every process.

        rank = (stage · dp + data index) · tp + tensor index.
        """
        tp, dp, pp = layout.tp, layout.dp, layout.pp
        world = cache.of(tuple(range(layout.world_size)))
        places = [(p, d, t) for p in range(pp) for d in range(dp) for t in range(tp)]
        tensor = {(p, d): tuple((p * dp + d) * tp + t for t in range(tp)) for p, d, _ in places}
        data = {(p, t): tuple((p * dp + d) * tp + t for d in range(dp)) for p, _, t in places}
        pipeline = {(d, t): tuple((p * dp + d) * tp + t for p in range(pp)) for _, d, t in places}
        made = [
            {key: cache.of(ranks) if len(ranks) > 1 else None for key, ranks in kind.items()}
            for kind in (pipeline, data, tensor)
        ]
        if rank >= layout.world_size:
            return None
        stage, rest = divmod(rank, dp * tp)
        data_index, tensor_index = divmod(rest, tp)
        return cls(
            stage=stage,
            data_index=data_index,
            tensor_index=tensor_index,
            world=world,
            pipeline=made[0][data_index, tensor_index],
            data=made[1][stage, tensor_index],
            tensor=made[2][stage, data_index],
        )
