"""Times between failures as an exponential or a Weibull distribution, by likelihood; the last time is cut off."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernelcast.runtime.dataclass import dataclass

_LEAST_EVENTS = 5
_SHAPES = (0.05, 20.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A Weibull distribution of `shape` (1: exponential) with `mean_s` between failures, of `events` and `censored`.

    `gain` is the log-likelihood of the best Weibull over that of the exponential; `shape_interval` is of 95 %, by the
    profile of the likelihood, None with fewer than 5 events. The Weibull is taken where its AIC is lower: gain above 1.
    """

    shape: float
    mean_s: float
    events: int
    censored: int
    gain: float
    shape_interval: tuple[float, float] | None

    @property
    def kind(self) -> str:
        """`exponential` or `weibull`."""
        return "exponential" if self.shape == 1 else "weibull"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "kind": self.kind, "shape": self.shape, "mean_s": self.mean_s, "events": self.events,
            "censored": self.censored, "gain": self.gain,
            "shape_interval": None if self.shape_interval is None else list(self.shape_interval),
        }  # fmt: skip


def fit(events_s: Sequence[float], censored_s: Sequence[float] = ()) -> Fit | None:
    """Fit times that ended in a failure, and times that ended without one; None without any failure.

    The scale's maximum is in closed form for each shape; the shape is searched on its profile.
    """
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
