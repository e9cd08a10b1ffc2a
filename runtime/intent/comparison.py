"""One question to several hardware: the best layout of each, in one order."""

from collections.abc import Mapping
from typing import Any

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.estimate.predicted_range import PredictedRange, chances_of_least
from kernelcast.runtime.estimate.training import Training, training
from kernelcast.runtime.intent.best import Best, OpenRequest, find_best
from kernelcast.runtime.intent.goals import RankBy, Wish
from kernelcast.runtime.search.result import Answer

COMPARISON_FORMAT = "kernelcast.comparison/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The best layout on one hardware, or the `problem` that leaves it without one."""

    hardware: str
    best: Best | None
    training: Training | None
    problem: str = ""

    def key(self, rank_by: RankBy) -> float:
        """What it is ranked by, the smaller the better; without a layout behind all others."""
        if self.best is None:
            return float("inf")
        run = self.training
        values = {
            "time": self.best.estimate.step_time_s,
            "days": None if run is None else run.days,
            "cost": None if run is None else run.cost,
            "energy": None if run is None else run.energy_kwh,
        }
        value = values[rank_by]
        if value is None:
            raise UsageError(
                field="rank_by",
                found=rank_by,
                expected=f"another: the {rank_by} on {self.hardware} is not known",
            )
        return value

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {"hardware": self.hardware, "problem": self.problem or None}
        if self.best is None:
            return {**values, "best": None}
        estimate = self.best.estimate
        return {
            **values,
            "best": Answer(parallelism=estimate.parallelism, estimate=estimate).to_dict(),
            **({} if self.training is None else self.training.to_dict()),
            "search": self.best.counted(),
            "provenance": estimate.provenance.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was compared, the best first."""

    rank_by: RankBy
    compared: tuple[Compared, ...]

    @property
    def chances(self) -> Mapping[str, float]:
        """Probability of each hardware with an interval to be the best, as if errors were independent."""
        ranges = {}
        for one in self.compared:
            step = None if one.best is None else one.best.estimate
            if step is not None and step.interval_s is not None:
                scale = one.key(self.rank_by) / step.step_time_s
                low, high = step.interval_s
                ranges[one.hardware] = PredictedRange(
                    median=scale * step.step_time_s, interval=(scale * low, scale * high)
                )
        return dict(zip(ranges, chances_of_least(list(ranges.values())), strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, form `kernelcast.comparison/1` (docs/json.md)."""
        chances = self.chances
        return {
            "format": COMPARISON_FORMAT,
            "rank_by": self.rank_by,
            "hardware": [one.to_dict() | {"chance": chances.get(one.hardware)} for one in self.compared],
        }


def compare(requests: Mapping[str, OpenRequest], wish: Wish) -> Comparison:
    """The best layout of each hardware; UsageError without a value to rank by, DataError without any answer."""
    rank_by = wish.rank_by or "time"
    found = [_compared(name, request, wish) for name, request in requests.items()]
    if all(one.best is None for one in found):
        raise DataError("; ".join(f"{one.hardware}: {one.problem}" for one in found))
    return Comparison(rank_by=rank_by, compared=tuple(sorted(found, key=lambda one: one.key(rank_by))))


def _compared(hardware: str, request: OpenRequest, wish: Wish) -> Compared:
    try:
        best = find_best(request)
    except DataError as error:
        return Compared(hardware=hardware, best=None, training=None, problem=str(error))
    run = None
    if (data := wish.data(best.estimate.parallelism.sample_length(best.estimate.model))) is not None:
        run = training(best.estimate, **data, price_per_gpu_hour=wish.price(hardware))
    return Compared(hardware=hardware, best=best, training=run)
