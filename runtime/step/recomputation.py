"""What a backward pass runs again of a layer's forward pass, and in how many layers."""

from dataclasses import dataclass
from typing import Self

from kernelcast.runtime.request.fields import LAYOUT, Recompute, RecomputeModule
from kernelcast.runtime.request.layout import Parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """The fields of a layout that decide it, see `Parallelism`."""

    kind: Recompute = LAYOUT["recompute"].default
    modules: tuple[RecomputeModule, ...] = LAYOUT["recompute_modules"].default
    stops_early: bool = LAYOUT["recompute_early_stop"].default
    layers: int = LAYOUT["recompute_layers"].default

    @classmethod
    def of(cls, layout: Parallelism) -> Self:
        return cls(
            kind=layout.recompute,
            modules=layout.recompute_modules,
            stops_early=layout.recompute_early_stop,
            layers=layout.recompute_layers,
        )

    def runs_again(self, module: RecomputeModule) -> bool:
        """Whether selective recomputation runs a module again."""
        return self.kind == "selective" and module in self.modules

    def kept_layers(self, layers: int) -> int:
        """How many of a chunk's layers are not recomputed: its last ones. Selective recomputation leaves none out."""
        return max(0, layers - self.layers) if self.kind == "full" and self.layers else 0
