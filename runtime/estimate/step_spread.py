"""How single steps of a run scatter around their median: jitter and stragglers, from public logs by number of devices.

`step_spread.csv` is a row per publisher, benchmark and size (MLPerf Training 4.0 to 5.1; `make step-spread` writes it).
A new run takes the medians over publishers of rows of a similar size: each row weighs by its distance in powers of two.
"""

import csv
import math
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.json_text import plain_values
from kernelcast.runtime.shipped import STEP_SPREAD

_WIDTH = 2.0
"""Powers of two in the number of devices over which a row's weight falls to exp(−1/2)."""
RUNS_STD = 0.0013
"""Standard deviation of the medians of runs of one configuration (141 groups of the same logs)."""
_NORMAL = {0.5: 0.0, 0.9: 1.2816, 0.99: 2.3263}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadRow:
    """Of one publisher's runs: percentiles, mean and standard deviation of a step over the median step, None where logs
    have no single steps; seconds from the start of the process to the first step.
    """

    publisher: str
    benchmark: str
    gpus: int
    steps: int
    p90: float | None
    p99: float | None
    mean: float | None
    std: float | None
    start_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpread:
    """Quantiles of a step over its median, for one number of devices; `p99_range` are the 5th and 95th percentile over
    `publishers`; `start_s` with its range are seconds to the first step.
    """

    p90: float
    p99: float
    mean: float
    std: float
    p99_range: tuple[float, float]
    start_s: float
    start_range_s: tuple[float, float]
    publishers: int

    def of_steps(self, steps: int, level: float) -> float:
        """Quantile 0.5, 0.9 or 0.99 of the time of `steps`, over `steps` times the median step.

        Of many steps the sum is normal around its mean; runs differ by `RUNS_STD`. One step has the quantiles itself.
        """
        if steps == 1:
            return {0.5: 1.0, 0.9: self.p90, 0.99: self.p99}[level]
        return self.mean + _NORMAL[level] * math.sqrt(self.std**2 / steps + RUNS_STD**2)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return plain_values(self, "p90", "p99", "mean", "std", "p99_range", "publishers")


@cache
def spread_rows() -> tuple[SpreadRow, ...]:
    """All rows of the table."""
    with STEP_SPREAD.open(encoding="utf-8", newline="") as file:
        return tuple(
            SpreadRow(
                publisher=row["publisher"],
                benchmark=row["benchmark"],
                gpus=int(row["gpus"]),
                steps=int(row["steps"] or 0),
                **{
                    name: float(row[name]) if row[name] else None
                    for name in ("p90", "p99", "mean", "std", "start_s")
                },
            )
            for row in csv.DictReader(file)
        )


@cache
def spread_of(gpus: int, without: Collection[str] = ()) -> StepSpread:
    """The spread of steps on `gpus` devices; `without` are publishers left out."""
    rows = [row for row in spread_rows() if row.publisher not in without]
    timed = [row for row in rows if row.p99 is not None]

    def at(level: float, name: str, among: Sequence[SpreadRow] = timed) -> float:
        return _quantile(
            level, [(row, one) for row in among if (one := getattr(row, name)) is not None], gpus
        )

    return StepSpread(
        **{name: at(0.5, name) for name in ("p90", "p99", "mean", "std")},
        p99_range=(at(0.05, "p99"), at(0.95, "p99")),
        start_s=at(0.5, "start_s", rows),
        start_range_s=(at(0.05, "start_s", rows), at(0.95, "start_s", rows)),
        publishers=len({row.publisher for row in timed}),
    )


class Shares(NamedTuple):
    """Percentiles, mean and standard deviation of steps over their median."""

    p90: float
    p99: float
    mean: float
    std: float


def shares_of(times_s: Sequence[float]) -> Shares:
    """Of the times of a run's steps."""
    shares = np.asarray(times_s) / np.median(times_s)
    p90, p99 = np.quantile(shares, (0.9, 0.99))
    return Shares(float(p90), float(p99), float(shares.mean()), float(shares.std()))


def own_spread(runs: Sequence[Sequence[float]], gpus: int) -> StepSpread:
    """The spread of the user's own runs, equally weighted; start-up times come from public runs of this size."""
    found = [shares_of(one) for one in runs]
    middle = Shares(*(float(np.median(column)) for column in zip(*found, strict=True)))
    low, high = (float(one) for one in np.quantile([one.p99 for one in found], (0.05, 0.95)))
    return replace(spread_of(gpus), **middle._asdict(), p99_range=(low, high), publishers=1)


def _quantile(level: float, found: Sequence[tuple[SpreadRow, float]], gpus: int) -> float:
    """A quantile over rows by weight; the rows of one publisher weigh at most as much as its nearest one."""
    near = [math.exp(-((math.log2(row.gpus / gpus) / _WIDTH) ** 2) / 2) + 1e-12 for row, _ in found]
    sums: dict[str, float] = {}
    most: dict[str, float] = {}
    for (row, _), weight in zip(found, near, strict=True):
        sums[row.publisher] = sums.get(row.publisher, 0.0) + weight
        most[row.publisher] = max(most.get(row.publisher, 0.0), weight)
    weighted = sorted(
        (value, weight * most[row.publisher] / sums[row.publisher])
        for (row, value), weight in zip(found, near, strict=True)
    )
    total, before = sum(weight for _, weight in weighted), 0.0
    for value, weight in weighted:
        before += weight
        if before >= level * total:
            return value
    return weighted[-1][0]
