"""Offloading to the host in the steps of many layouts: its part of the update, and copies overlapped with passes."""

from collections.abc import Callable

import numpy as np

from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.estimate.configurations import Rows, Times
from kernelcast.runtime.memory.stages import offloaded_by_layers
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.chunk_times import BlockTimes, exposed_us
from kernelcast.runtime.step.decomposition import Decomposition
from kernelcast.runtime.step.host import Host
from kernelcast.runtime.step.layouts import OF_STAGES, Layouts

_TYPES = {2: "bfloat16", 4: "float32", 8: "float64"}
"""A type with this number of bytes per element: the size of activations depends only on it."""


class HostShare:
    """The host of an engine's devices; its link moves `link_bytes_per_s` unless layouts state another rate."""

    def __init__(
        self, model: ModelConfig, link_bytes_per_s: float | None, *, element_bytes: int, draws: int
    ) -> None:
        self.model, self.link_bytes_per_s = model, link_bytes_per_s
        self.element_bytes, self.draws = element_bytes, draws

    def _host(self, layouts: Layouts, rows: Rows) -> Host | None:
        """Its rates; all layouts have the same.

        Raises:
            UsageError: a rate that is needed is not known.
        """
        return Host.of(layouts.parallelism(int(rows[0])), self.link_bytes_per_s) if len(rows) else None

    def update_us(
        self, layouts: Layouts, rows: Rows, take_apart: Callable[[Layouts, int], Decomposition]
    ) -> Times | float:
        """Time of the host's part of every stage's update, [configs, stages] of one pp; 0 without a part."""
        if not layouts.like.offload_optimizer:
            return 0.0
        host = self._host(layouts, rows)
        if host is None:
            return 0.0
        distinct, whose = layouts.distinct(*OF_STAGES, "zero")
        known = {
            row: [parts.host_update_us(stage, host) for stage in parts.stages]
            for row in sorted(set(whose[rows].tolist()))
            for parts in (take_apart(distinct, row),)
        }
        return np.repeat([known[row] for row in whose[rows].tolist()], 1 + self.draws, axis=0)

    def beside_copies(
        self, layouts: Layouts, rows: Rows, layers: tuple[BlockTimes, ...]
    ) -> tuple[BlockTimes, ...]:
        """Times of layers whose activations go to the host overlapped with the forward pass, and come back later.

        Like an overlapped collective, a copy adds the time that compute does not hide, at least the exposed share.
        """
        share = layouts.like.exposed_share
        host = self._host(layouts, rows) if layouts.like.offload_activations else None
        if host is None:
            return layers
        columns = (*OF_STAGES, "micro_batch", "sequence_parallel", "recompute")
        distinct, whose = layouts.take(rows).distinct(*columns)
        sent = offloaded_by_layers(self.model, distinct, dtype=_TYPES[self.element_bytes])
        copies_us = np.repeat(sent[:, whose] / host.link, 1 + self.draws, axis=1)
        return tuple(
            replace(
                layer,
                forward_us=layer.forward_us + exposed_us(copy_us, layer.forward_us, share),
                backward_us=layer.backward_us + exposed_us(copy_us, layer.backward_us, share),
            )
            for layer, copy_us in zip(layers, copies_us, strict=True)
        )
