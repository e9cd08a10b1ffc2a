"""Answers of regressors that do not follow their own measurements."""

from dataclasses import dataclass
from typing import Any, ClassVar

from kernelcast.runtime.answers.causes import Cause
from kernelcast.runtime.operators import Key

LARGE_ERROR = 0.25
"""A mean error on held-out rows above this makes an answer doubtful, as a fraction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeErrorWarning:
    """A regressor answered whose mean error on held-out rows, `error`, is large."""

    cause: ClassVar[Cause] = Cause.DOUBTFUL

    key: Key
    error: float

    def __str__(self) -> str:
        name, direction = self.key
        return f"{name} ({direction}): the regressor is {self.error:.0%} off on held-out measurements"

    @property
    def topic(self) -> str:
        """What it is about; of several warnings about one thing the most severe is shown."""
        return self.key[0]

    @property
    def severity(self) -> float:
        """The error."""
        return self.error

    @property
    def brief(self) -> str:
        """A clause for a line about several operators."""
        return f"{self.key[0]} up to {100 * self.error:.0f} % off on held-out measurements"

    def to_dict(self) -> dict[str, Any]:
        """Plain values; the error is a fraction."""
        name, direction = self.key
        return {
            "cause": self.cause.value,
            "kind": "large_error",
            "operator": name,
            "direction": direction.value,
            "error": self.error,
            "message": str(self),
        }
