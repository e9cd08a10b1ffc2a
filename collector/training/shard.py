"""What one device holds of a layer: its parts of tensors, of the sequence and of the experts."""

from dataclasses import dataclass, field

import torch.distributed as dist


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Part `index` of `parts`, and the group that holds all (None: a whole)."""

    index: int = 0
    parts: int = 1
    group: dist.ProcessGroup | None = None

    def of(self, size: int) -> slice:
        """This device's part of `size` rows or columns."""
        local = size // self.parts
        return slice(self.index * local, (self.index + 1) * local)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard(Part):
    """A part of every tensor that tensor parallelism cuts, with those of the sequence and of the experts."""

    context: Part = field(default_factory=Part)
    experts: Part = field(default_factory=Part)
