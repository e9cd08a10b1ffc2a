"""What a regressor was asked outside of what it was trained on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kernelcast.runtime.bundle.regressor_entry import Layout, RegressorEntry
from kernelcast.runtime.operators import Direction


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureWarning:
    """A regressor was asked outside what it was trained on: `feature` had the value `asked`."""

    operator: str
    direction: Direction
    feature: str
    asked: float
    minimum: float
    maximum: float

    def __str__(self) -> str:
        return (
            f"{self.operator} ({self.direction}): {self.feature} = {self.asked:g} is outside the training "
            f"range, {self.minimum:g} to {self.maximum:g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `range` is [minimum, maximum]."""
        return {
            "operator": self.operator,
            "direction": self.direction.value,
            "feature": self.feature,
            "asked": self.asked,
            "range": [self.minimum, self.maximum],
            "message": str(self),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutWarning:
    """A collective was asked for a layout that none of its samples has."""

    operator: str
    direction: Direction
    nodes: float
    gpus_per_node: float
    measured: tuple[Layout, ...]

    def __str__(self) -> str:
        measured = ", ".join(f"{nodes} × {gpus}" for nodes, gpus in self.measured)
        return (
            f"{self.operator} ({self.direction}): layout {self.nodes:g} × {self.gpus_per_node:g} "
            f"(nodes × devices per node) was never measured, only {measured}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `feature` is "layout", `asked` and each of `measured` are [nodes, devices per node]."""
        return {
            "operator": self.operator,
            "direction": self.direction.value,
            "feature": "layout",
            "asked": [self.nodes, self.gpus_per_node],
            "measured": [list(layout) for layout in self.measured],
            "message": str(self),
        }


RangeWarning: TypeAlias = FeatureWarning | LayoutWarning


def out_of_range(entry: RegressorEntry, vectors: Sequence[tuple[float, ...]]) -> tuple[RangeWarning, ...]:
    """One warning per feature and value outside the training range and per layout never measured, as they appear."""
    found: dict[tuple[object, ...], RangeWarning] = {}
    for vector in vectors:
        for feature, asked, (low, high) in zip(entry.features, vector, entry.training_range, strict=True):
            if not low <= asked <= high:
                found[feature, asked] = FeatureWarning(
                    operator=entry.operator,
                    direction=entry.direction,
                    feature=feature,
                    asked=asked,
                    minimum=low,
                    maximum=high,
                )
        if entry.layouts:
            # The last two features of every collective, see the operator table.
            nodes, gpus_per_node = vector[-2:]
            if (nodes, gpus_per_node) not in entry.layouts:
                found[nodes, gpus_per_node, "layout"] = LayoutWarning(
                    operator=entry.operator,
                    direction=entry.direction,
                    nodes=nodes,
                    gpus_per_node=gpus_per_node,
                    measured=entry.layouts,
                )
    return tuple(found.values())
