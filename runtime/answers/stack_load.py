"""A stack's factors hold what bursts are short of a long step's clocks; times under sustained load hold it as well."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelcast.runtime.answers.causes import Cause
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.operators import Key
from kernelcast.runtime.stack.stack import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class StackLoadWarning:
    """Factors of `stack` multiplied times that were measured under sustained load."""

    cause: ClassVar[Cause] = Cause.DOUBTFUL
    topic: ClassVar[str] = "load of the device"

    stack: str
    severity: ClassVar[float] = 1.0

    def __str__(self) -> str:
        return (
            f"stack {self.stack} multiplies times that were measured under sustained load: if it was fitted to bursts, "
            "lower clocks count twice (kernelcast stack fit)"
        )

    @property
    def brief(self) -> str:
        """A clause for a line."""
        return f"stack {self.stack} was perhaps fitted to bursts, and multiplies times under sustained load"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"cause": self.cause.value, "kind": "stack_load", "stack": self.stack, "message": str(self)}


def stack_load_warning(
    stack: Stack | None, sources: Iterable[Key], entries: Mapping[Key, RegressorEntry]
) -> StackLoadWarning | None:
    """A warning where a factor other than 1 multiplies what one of `sources`, the keys that answered, has sustained."""
    if stack is None:
        return None
    multiplied = (key for key in sources if key in entries and entries[key].load.is_sustained)
    if any(stack.log_factor(operator) for operator, _ in multiplied):
        return StackLoadWarning(stack=stack.name)
    return None
