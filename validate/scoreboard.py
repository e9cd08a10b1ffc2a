"""Figures of scored steps, source by source, from the plain values of `kernelcast validate steps --json`."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

Document = Mapping[str, Any]
LEVEL = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measured step with its prediction; `error` is predicted / measured - 1."""

    label: str
    measured_s: float
    predicted_s: float
    interval_s: tuple[float, float]
    devices: int
    tokens: int
    layout: str
    hardware: str
    is_steady: bool
    published_error: float | None

    @classmethod
    def of(cls, step: Document, hardware: str) -> Self:
        """The point of a predicted step."""
        split = [name for name in ("pp", "tp") if step[name] > 1]
        low_s, high_s = step["interval_s"]
        return cls(
            label=step["label"],
            measured_s=step["measured_s"],
            predicted_s=step["predicted_s"],
            interval_s=(low_s, high_s),
            devices=step["pp"] * step["tp"] * step["dp"],
            tokens=step["sequence_length"],
            layout=" × ".join(split) or "dp alone",
            hardware=hardware,
            is_steady=step["is_steady"],
            published_error=step["published_error"],
        )

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.predicted_s / self.measured_s - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measured step lies in the interval."""
        low_s, high_s = self.interval_s
        return low_s <= self.measured_s <= high_s

    @property
    def half_width(self) -> float:
        """Half of the interval, as a fraction of the predicted step."""
        low_s, high_s = self.interval_s
        return (high_s - low_s) / 2 / self.predicted_s

    @property
    def interval_score(self) -> float:
        """Interval score of Gneiting and Raftery (2007, section 6.2) on log(time): the smaller the better."""
        low, high, measured = (math.log(one) for one in (*self.interval_s, self.measured_s))
        beyond = max(0.0, low - measured, measured - high)
        return high - low + 2 / (1 - LEVEL) * beyond

    def within(self, share: float) -> Self:
        """The same with a constant interval, a factor of 1 + `share` up and down."""
        return replace(self, interval_s=(self.predicted_s / (1 + share), self.predicted_s * (1 + share)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A site's steps, in the order of its file; `is_own` where they were added (`validate add`)."""

    site: str
    runs_file: str
    asked: str
    fabric: str
    is_own: bool
    points: tuple[Point, ...]

    def with_points(self, points: Iterable[Point]) -> Self:
        """The same source with other predictions of its steps."""
        return replace(self, points=tuple(points))

    def where(self, **fields: object) -> tuple[Point, ...]:
        """Points whose fields have these values."""
        return tuple(
            one for one in self.points if all(getattr(one, name) == value for name, value in fields.items())
        )


def sources_of(document: Document) -> tuple[Source, ...]:
    """The sources of `kernelcast.steps/1`, with the steps that were predicted."""
    return tuple(
        Source(
            site=one["site"],
            runs_file=one["runs_file"],
            asked=one["asked"],
            fabric=one["fabric"],
            is_own=not one["is_shipped"],
            points=tuple(
                Point.of(step, one["asked"]) for step in one["steps"] if step["predicted_s"] is not None
            ),
        )
        for one in document["files"]
    )
