"""What a collection is asked for beside its plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch

from kernelcast.collector.benches import Place
from kernelcast.collector.machine.probe import resolve_device
from kernelcast.collector.measuring.harness import Effort
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.load import Load

Again: TypeAlias = Literal["no", "all", "flagged"]
"""What is measured once more of what a database already holds."""

_DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a plan is measured, and which of its `operators` (all where none is named).

    Each of `processes` is a level: that number of processes of this node run an operator at once, one of which is
    measured (companions.py). `load` is the plan's unless it is given (load.py); what was measured under the other one
    does not count as held. Collectives have neither. `again` measures what is held once more, all of it or what was
    flagged; older samples stay.
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
        """Where it is measured.

        Raises:
            UsageError: the dtype or the device is unknown, or the device is not there.
        """
        if self.dtype not in _DTYPES:
            raise UsageError(f"dtype {self.dtype!r} is unknown; expected one of {', '.join(_DTYPES)}")
        return Place(resolve_device(self.device), _DTYPES[self.dtype])
