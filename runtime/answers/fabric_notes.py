"""What an answer says about its fabric: who answered, what was extended, which devices per node were taken."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelcast.runtime.answers.causes import Cause
from kernelcast.runtime.bundle.regressor_entry import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricUse:
    """The fabric that answered an estimate's collectives, in an estimate's provenance.

    `kind` is "described" or "measured"; `digest` that of the bundle, empty for a description. `source` says where a
    description's numbers come from.
    """

    name: str
    kind: str
    description: str
    digest: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedWarning:
    """Collectives were computed from a description, and not measured."""

    cause: ClassVar[Cause] = Cause.DESCRIBED
    topic: ClassVar[str] = "fabric"
    severity: ClassVar[float] = 1.0

    operators: tuple[str, ...]
    fabric: str

    def __str__(self) -> str:
        return f"{', '.join(self.operators)}: computed from the description of fabric {self.fabric}, not measured"

    @property
    def brief(self) -> str:
        """A clause for a line."""
        return f"{', '.join(self.operators)} by the description of fabric {self.fabric}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "cause": self.cause.value,
            "kind": "described",
            "operators": list(self.operators),
            "fabric": self.fabric,
            "message": str(self),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferredWarning:
    """Collectives were answered by another bundle's measurements, of another cluster."""

    cause: ClassVar[Cause] = Cause.TRANSFERRED
    topic: ClassVar[str] = "fabric"
    severity: ClassVar[float] = 1.0

    operators: tuple[str, ...]
    fabric: str

    def __str__(self) -> str:
        return f"{', '.join(self.operators)}: answered by the measurements of {self.fabric}"

    @property
    def brief(self) -> str:
        """A clause for a line."""
        return f"{', '.join(self.operators)} from {self.fabric}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "cause": self.cause.value,
            "kind": "transferred",
            "operators": list(self.operators),
            "fabric": self.fabric,
            "message": str(self),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendedWarning:
    """A collective's layout was never measured: its measured layouts were extended by a description."""

    cause: ClassVar[Cause] = Cause.EXTRAPOLATED

    operator: str
    asked: Layout
    measured: tuple[Layout, ...]
    fabric: str

    def __str__(self) -> str:
        nodes, gpus = self.asked
        known = ", ".join(f"{one} × {other}" for one, other in self.measured)
        return (
            f"{self.operator}: layout {nodes} × {gpus} (nodes × devices per node) was never measured, "
            f"extended from {known} by the description of fabric {self.fabric}"
        )

    @property
    def topic(self) -> str:
        """What it is about; of several warnings about one thing the most severe is shown."""
        return f"{self.operator} layout"

    @property
    def severity(self) -> float:
        """Processes of the layout."""
        return float(self.asked[0] * self.asked[1])

    @property
    def brief(self) -> str:
        """A clause for a line about several operators."""
        return f"{self.operator} on {self.asked[0]} × {self.asked[1]}, extended by fabric {self.fabric}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values; layouts are [nodes, devices per node]."""
        return {
            "cause": self.cause.value,
            "kind": "extended",
            "operator": self.operator,
            "feature": "layout",
            "asked": list(self.asked),
            "measured": [list(layout) for layout in self.measured],
            "fabric": self.fabric,
            "message": str(self),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesPerNodeWarning:
    """The step was laid out on nodes of another size than those that `of` has."""

    cause: ClassVar[Cause] = Cause.EXTRAPOLATED
    topic: ClassVar[str] = "devices per node"
    severity: ClassVar[float] = 1.0

    used: int
    source: str
    of: str
    known: tuple[int, ...]

    def __str__(self) -> str:
        known = ", ".join(map(str, self.known))
        return f"{self.used} devices per node ({self.source}), but {self.of} has nodes of {known}"

    @property
    def brief(self) -> str:
        """A clause for a line."""
        return str(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "cause": self.cause.value,
            "kind": "devices_per_node",
            "used": self.used,
            "source": self.source,
            "of": self.of,
            "known": list(self.known),
            "message": str(self),
        }


def devices_per_node_warnings(
    used: int, source: str, *, bundle: Sequence[int], fabric: tuple[str, Sequence[int]] | None
) -> tuple[DevicesPerNodeWarning, ...]:
    """One warning per bundle and fabric whose nodes have another number of devices; none where it is not known."""
    asked = [("the bundle", bundle), *([] if fabric is None else [(f"fabric {fabric[0]}", fabric[1])])]
    return tuple(
        DevicesPerNodeWarning(used=used, source=source, of=of, known=tuple(sorted(set(known))))
        for of, known in asked
        if known and used not in known
    )
