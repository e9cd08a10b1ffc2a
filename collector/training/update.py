"""The end of a step: bucketed all-reduce of gradients over the data-parallel group, clipping, and the optimizer.

As in Megatron-LM, all gradients of a rank are one flat buffer that is zeroed once per step: every micro-batch
accumulates into it, and a bucket is a slice of it.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from kernelcast.collector.functions.update import (
    MOST_NORM,
    MasterAdamW,
    clip_to_norm,
    fused_adamw,
    squared_norm,
)
from kernelcast.collector.training.marks import operator_mark


class Gradients:
    """Flat buffer of all gradients, in the parameters' dtype: of `experts` first, of `replicated` parameters last."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        replicated: Iterable[nn.Parameter] = (),
        experts: Iterable[nn.Parameter] = (),
    ) -> None:
        places = {id(p): 2 for p in replicated} | {id(p): 0 for p in experts}
        chosen = sorted(parameters, key=lambda p: places.get(id(p), 1))
        entries = [sum(p.numel() for p in chosen if places.get(id(p), 1) == place) for place in range(3)]
        self._expert_entries, self._sharded_entries = entries[0], entries[0] + entries[1]
        self.buffer = torch.zeros(sum(entries), dtype=chosen[0].dtype, device=chosen[0].device)
        start = 0
        for parameter in chosen:
            end = start + parameter.numel()
            parameter.grad = self.buffer[start:end].view_as(parameter)
            start = end

    def zero(self) -> None:
        """Zero the buffer, before the first micro-batch of a step."""
        with operator_mark("gradient_zero"):
            self.buffer.zero_()

    def all_reduce(
        self,
        group: dist.ProcessGroup | None,
        bucket_entries: int,
        *,
        expert_group: dist.ProcessGroup | None = None,
    ) -> None:
        """Sum over the group, bucket by bucket. The losses are scaled so that the sum is the mean."""
        experts, rest = self.buffer[: self._expert_entries], self.buffer[self._expert_entries :]
        for part, own, role in ((rest, group, "data"), (experts, expert_group, "expert_data")):
            for bucket in torch.split(part, bucket_entries) if own is not None and part.numel() else ():
                with operator_mark("all_reduce", role):
                    dist.all_reduce(bucket, group=own)

    def clip(
        self,
        group: dist.ProcessGroup | None,
        *,
        copies: int,
        counts_replicated: bool,
        expert_copies: int = 1,
        most_norm: float = MOST_NORM,
    ) -> None:
        """Scale the gradients so that their L2 norm over the whole model is at most `most_norm`.

        `group` are all processes of the layout (None: only this one); `copies` of them hold the same gradients, and
        `expert_copies` the same expert gradients. `counts_replicated` is True on one of the processes that share a
        layer: it counts the replicated parameters.
        """
        with operator_mark("gradient_clip"):
            end = len(self.buffer) if counts_replicated else self._sharded_entries
            squared = squared_norm(self.buffer[self._expert_entries : end]) / copies
            if self._expert_entries:
                squared += squared_norm(self.buffer[: self._expert_entries]) / expert_copies
            if group is not None:
                dist.all_reduce(squared, group=group)
            clip_to_norm(self.buffer, squared, most_norm=most_norm)


class _Zero1(ZeroRedundancyOptimizer):
    """ZeRO-1 with a mark around the all-gather of updated parameters."""

    def _sync_params(self) -> None:
        with operator_mark("all_gather", "data"):
            super()._sync_params()  # type: ignore[misc]


class Optimizer:
    """`MasterAdamW` with a mark for the operator's `role`; `shards_over` is the group of a sharded update (ZeRO-1)."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        role: str,
        shards_over: dist.ProcessGroup | None,
        loss_scale: float,
    ) -> None:
        self._role = role
        make = fused_adamw if shards_over is None else partial(_sharded_adamw, group=shards_over)
        self._optimizer = MasterAdamW(parameters, loss_scale=loss_scale, make=make)

    def step(self) -> None:
        """One update from the present gradients."""
        with operator_mark("adam", self._role):
            self._optimizer.step()


def _sharded_adamw(parameters: list[Tensor], learning_rate: float, *, group: dist.ProcessGroup) -> Any:
    return _Zero1(
        parameters,
        torch.optim.AdamW,
        process_group=group,
        parameters_as_bucket_view=True,
        lr=learning_rate,
        fused=True,
    )
