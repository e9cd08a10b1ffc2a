"""What an answer says about an operator that another device's measurements answer for."""

from dataclasses import dataclass
from typing import Any, ClassVar

from kernelcast.runtime.answers.causes import Cause
from kernelcast.runtime.bundle.transfer import Transfer
from kernelcast.runtime.operators import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTransferWarning:
    """An operator was measured on another device; its times are scaled by the peaks of both."""

    cause: ClassVar[Cause] = Cause.TRANSFERRED
    severity: ClassVar[float] = 1.0

    key: Key
    origin: str
    target: str
    points: int
    log_half_width: float

    @classmethod
    def of(cls, key: Key, transfer: Transfer) -> "OperatorTransferWarning":
        """That of a regressor's entry."""
        return cls(
            key=key,
            origin=transfer.origin.device,
            target=transfer.target.device,
            points=0 if transfer.correction is None else transfer.correction.points,
            log_half_width=transfer.log_half_width,
        )

    def __str__(self) -> str:
        name, direction = self.key
        how = f"corrected by {self.points} points" if self.points else "scaled by the peaks of both"
        return f"{name} ({direction}): measured on {self.origin}, {how}"

    @property
    def topic(self) -> str:
        """What it is about; of several warnings about one thing one is shown."""
        return self.key[0]

    @property
    def brief(self) -> str:
        """A clause for a line about several operators."""
        return f"{self.key[0]} from {self.origin}{f' and {self.points} points' if self.points else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `log_half_width` is what 90 % of such transfers were within, in log(time)."""
        name, direction = self.key
        return {
            "cause": self.cause.value,
            "kind": "operator_transfer",
            "operator": name,
            "direction": direction.value,
            "origin": self.origin,
            "target": self.target,
            "points": self.points,
            "log_half_width": self.log_half_width,
            "message": str(self),
        }
