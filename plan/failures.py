"""How often nodes fail: published sites, and own counts on top of them; the distribution of times between failures.

Sites differ by more than their counts explain, so that the rate of a new site is a Gamma distribution fitted to the
rates of published ones, each site once. Your own counts turn it into a posterior (a Gamma again: conjugate to
Poisson counts); few events leave it wide.
"""

import math
import tomllib
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError, shown
from kernelcast.runtime.json_text import plain_values
from kernelcast.runtime.record import WITH_DEFAULT, Record, above, at_least, read_record

FAILURES_PATH = Path(__file__).resolve().parent / "failures.toml"
GPUS_OF_RATE = 8
"""Rates are per node of this many GPUs; other nodes fail in proportion."""
_LEAST_SITES = 3
_S_PER_DAY = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSite(Record):
    """A row of failures.toml."""

    OPTIONAL = WITH_DEFAULT
    failures: Annotated[int, at_least(0)]
    node_days: Annotated[float, above(0)]
    gpus_per_node: Annotated[int, at_least(1)] = GPUS_OF_RATE
    architecture: str
    counted: str
    source: str
    operator: str
    range: tuple[int, int] | None = None
    waited_h: Annotated[float | None, above(0)] = None

    @property
    def per_1000_node_days(self) -> float:
        """Failures per 1,000 days of a node with 8 GPUs; half an event where there was none."""
        exposure = self.node_days * self.gpus_per_node / GPUS_OF_RATE
        return 1000 * max(self.failures, 0.5) / exposure


@cache
def published_sites() -> Mapping[str, FailureSite]:
    rows = tomllib.loads(FAILURES_PATH.read_text(encoding="utf-8"))
    return {name: read_record(FailureSite, row) for name, row in rows.items()}


def people_detection(*, without: Collection[str] = ()) -> tuple[float, float]:
    """Seconds that a failure waits for people who restart a run (geometric mean of published sites), and the standard
    deviation of their logarithm, at least that of a factor of two. `without` are names left out.
    """
    logs = [
        math.log(3600 * one.waited_h)
        for name, one in published_sites().items()
        if one.waited_h and name not in without
    ]
    mean = sum(logs) / len(logs)
    scatter = math.sqrt(sum((one - mean) ** 2 for one in logs) / max(1, len(logs) - 1))
    return math.exp(mean), max(math.log(2), scatter) * math.sqrt(1 + 1 / len(logs))


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """A Gamma distribution of failures per 1,000 days of a node with 8 GPUs: `events` in `thousands` of these, both
    infinite where the rate is certain. `origin` says in words where it comes from; `shape` is the Weibull shape of
    times between failures.
    """

    events: float
    thousands: float
    mean: float
    origin: str
    shape: float = 1.0

    @classmethod
    def of(cls, events: float, thousands: float, origin: str) -> "FailureRate":
        return cls(events=events, thousands=thousands, mean=events / thousands, origin=origin)

    def draws(self, random: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Random rates over the mean, float64 [count]."""
        if math.isinf(self.events):
            return np.ones(count)
        found: NDArray[np.float64] = random.gamma(self.events, 1 / self.events, count)
        return found

    def interval(self) -> tuple[float, float]:
        """5th and 95th percentile of the rate (20,000 draws, seeded)."""
        low, high = np.quantile(self.draws(np.random.default_rng(0), 20_000), (0.05, 0.95))
        return self.mean * float(low), self.mean * float(high)

    def per_s(self, *, nodes: int, gpus_per_node: int) -> float:
        """Mean failures per second of a run."""
        return self.mean / 1000 / _S_PER_DAY * nodes * gpus_per_node / GPUS_OF_RATE

    def observing(self, failures: int, node_days: float, gpus_per_node: int, origin: str) -> "FailureRate":
        """The posterior after own counts."""
        return FailureRate.of(
            self.events + failures,
            self.thousands + node_days * gpus_per_node / GPUS_OF_RATE / 1000,
            f"{failures} failures in {node_days:,.0f} node-days ({origin}), and {self.origin}",
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "per_1000_node_days": self.mean,
            "interval": None if math.isinf(self.events) else list(self.interval()),
            **plain_values(self, "shape", "origin"),
        }


def stated_rate(per_1000_node_days: float) -> FailureRate:
    """A rate that is given, taken as certain."""
    return FailureRate(events=math.inf, thousands=math.inf, mean=per_1000_node_days, origin="as given")


def observed_rate(failures: int, node_days: float, gpus_per_node: int) -> FailureRate:
    """The rate by counts alone: Jeffreys' prior of half an event."""
    thousands = max(node_days * gpus_per_node / GPUS_OF_RATE / 1000, 1e-9)
    return FailureRate.of(failures + 0.5, thousands, f"{failures} failures in {node_days:,.0f} node-days")


def rate_of(architecture: str | None, *, without: Collection[str] = ()) -> FailureRate:
    """The rate of a site that is not in the table, by its devices' generation where three sites have it, else by all:
    mean of logarithms, and their scatter for one more site. `without` are names left out. UsageError where a name is
    unknown.
    """
    for name in without:
        if name not in published_sites():
            raise UsageError(
                f"failure site {shown(name)} is unknown, expected one of {', '.join(published_sites())}"
            )
    known = {name: one for name, one in published_sites().items() if name not in without}
    same = {name: one for name, one in known.items() if one.architecture == architecture}
    used = same if len(same) >= _LEAST_SITES else known
    logs = [math.log(one.per_1000_node_days) for one in used.values()]
    mean = sum(logs) / len(logs)
    spread = math.sqrt(sum((one - mean) ** 2 for one in logs) / max(1, len(logs) - 1))
    # The Gamma with these moments of its logarithm: trigamma ≈ 1/a + 1/2a², digamma ≈ log a − 1/2a − 1/12a².
    variance = max(spread**2 * (1 + 1 / len(logs)), 1e-4)
    events = (1 + math.sqrt(1 + 2 * variance)) / (2 * variance)
    rate = math.exp(mean + 1 / (2 * events) + 1 / (12 * events**2))
    kind = f"{architecture} sites" if used is same else "sites of all generations"
    return FailureRate.of(events, events / rate, f"{len(used)} published {kind} ({', '.join(used)})")


_LEAST_EVENTS = 5
_SHAPES = (0.05, 20.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A Weibull distribution of `shape` with `mean_s` between failures, of `events` and `censored`. `gain` is its
    log-likelihood over the exponential's (by AIC it is taken above 1); `shape_interval` of 95 %, None with fewer than 5
    events.
    """

    shape: float
    mean_s: float
    events: int
    censored: int
    gain: float
    shape_interval: tuple[float, float] | None

    @property
    def kind(self) -> str:
        return "exponential" if self.shape == 1 else "weibull"

    def to_dict(self) -> dict[str, Any]:
        names = ("kind", "shape", "mean_s", "events", "censored", "gain", "shape_interval")
        return plain_values(self, *names)


def fit(events_s: Sequence[float], censored_s: Sequence[float] = ()) -> Fit | None:
    """Fit times with and without a failure at their end, by profile likelihood of the shape; None without failures."""
    events = np.maximum(np.asarray(events_s, dtype=float), 1e-3)
    if not len(events):
        return None
    every = np.concatenate([events, np.maximum(np.asarray(censored_s, dtype=float), 1e-3)])
    unit = float(every.mean())
    events, every = events / unit, every / unit

    def likelihood(shape: float) -> float:
        """The profile: the scale to the power of the shape is the mean of powers per event."""
        power = float((every**shape).sum()) / len(events)
        return len(events) * (math.log(shape) - math.log(power) - 1) + (shape - 1) * float(
            np.log(events).sum()
        )

    shapes = np.geomspace(*_SHAPES, 2_000)
    profile = np.array([likelihood(one) for one in shapes])
    best = int(profile.argmax())
    gain = float(profile[best]) - likelihood(1.0)
    within = shapes[profile >= profile[best] - 1.92]  # half of χ²'s 95 % with one degree of freedom
    enough = len(events) >= _LEAST_EVENTS
    shape = float(shapes[best]) if enough and gain > 1 else 1.0
    scale = (float((every**shape).sum()) / len(events)) ** (1 / shape)
    return Fit(
        shape=shape,
        mean_s=unit * scale * math.gamma(1 + 1 / shape),
        events=len(events),
        censored=len(censored_s),
        gain=gain,
        shape_interval=(float(within[0]), float(within[-1])) if enough else None,
    )
