"""Settings of a collection other than its plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch

from kernelcast.collector.benches import Place
from kernelcast.collector.machine.probe import resolve_device
from kernelcast.collector.measuring.harness import Effort
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.devices import Load

Again: TypeAlias = Literal["no", "all", "flagged"]
"""Which points of a database are measured again."""

_DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a plan is measured, and which of its `operators` (empty: all).

    Each of `processes` is a level: that number of processes on this node run an operator at once, and one of them is
    measured (companions.py). `load` overrides the plan's (load.py); samples under another load do not count as
    measured. Collectives have neither. `again` repeats points that are already measured, all or only flagged ones;
    older samples stay.
    """

    device: str = "auto"
    dtype: str = "float32"
    threads: int = 1
    processes: Sequence[int] = (1,)
    load: Load | None = None
    operators: tuple[str, ...] = ()
    again: Again = "no"
    effort: Effort = field(default_factory=Effort)
    site: str = ""

    def place(self) -> Place:
        """Device and precision; UsageError where the dtype or the device is unknown, or the device is missing."""
        if self.dtype not in _DTYPES:
            raise UsageError(f"dtype {self.dtype!r} is unknown; expected one of {', '.join(_DTYPES)}")
        return Place(resolve_device(self.device), _DTYPES[self.dtype])
