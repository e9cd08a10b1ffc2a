"""What a stage's passes spend on collectives of experts and of context parallelism, which nothing computes beside."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.pipeline import Kind
from kernelcast.runtime.step.component import Component

_COMPONENTS = {Component.LAYER_FORWARD: Kind.FORWARD, Component.LAYER_BACKWARD: Kind.BACKWARD}
_STYLES = {"expert": "expert", "expert_tensor": "expert", "context": "context"}
NAMES = {
    "expert": "expert all-to-all",
    "context": "context-parallel exchange",
    "tensor": "tensor-parallel collectives",
}
"""By style: what they are called, in the order in which they are shown."""


def style_of(role: str) -> str:
    """How collectives in a role are coloured; those of tensor parallelism where it is no other."""
    return _STYLES.get(role, "tensor")


@dataclass(frozen=True, slots=True)
class InsidePasses:
    """µs of one pass of one chunk, by stage, kind of pass and style; the mean over the chunks of a stage."""

    times_us: Mapping[tuple[int, Kind, str], float]

    @classmethod
    def of(cls, estimate: Estimate) -> "InsidePasses":
        """Those of an estimate's step."""
        found: defaultdict[tuple[int, Kind, str], float] = defaultdict(float)
        chunks = estimate.parallelism.virtual_stages  # of one copy of the model
        for row in estimate.operators:
            style = style_of(row.role)
            if row.component in _COMPONENTS and OPERATORS[row.operator].is_collective and style != "tensor":
                found[row.stage, _COMPONENTS[row.component], style] += row.total_s * 1e6 / chunks
        return cls(found)

    @property
    def styles(self) -> tuple[str, ...]:
        """Those that any pass has."""
        there = {style for (_, _, style), time_us in self.times_us.items() if time_us}
        return tuple(style for style in NAMES if style in there)

    def parts(self, stage: int, kind: Kind, start_us: float, end_us: float) -> list[tuple[str, float, float]]:
        """(style, start, end in µs) in a pass, drawn together from its start on: only their sum is known."""
        parts = []
        for style in self.styles:
            time_us = min(self.times_us.get((stage, kind, style), 0.0), end_us - start_us)
            if time_us > 0:
                parts.append((style, start_us, start_us + time_us))
                start_us += time_us
        return parts
