"""How sure a step's time is: random operator times drawn from the regressors' intervals (docs/method.md).

Errors of sums of operators in measured steps, log(measured / predicted) by source, are in `step_errors.json`;
`make step-errors` makes it from the runs files in validate/. A source is a machine whose steps were measured. An
interval is drawn from all sources, first of the same kind of step (`OTHER_KINDS`) and of devices (`OTHER_DEVICES`),
without the publisher's steps of the model that predictions are compared with (docs/trust.md, A step).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from random import Random
from statistics import NormalDist
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.answers.asking import OperatorTimes, Question
from kernelcast.runtime.bundle.calibration import Factors
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.catalogue import all_hardware
from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.hardware.devices import device, device_named
from kernelcast.runtime.operators import Direction, Key
from kernelcast.runtime.request.fields import TimelineKind
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.shipped import STEP_ERRORS

if TYPE_CHECKING:
    from kernelcast.runtime.stack import Stack

OTHER_KINDS = 0.2
"""Weight of a source with another kind of steps than the predicted one."""
OTHER_DEVICES = 0.1
"""Weight of a source on another kind of devices: CUDA's kernels were measured, ROCm's times are CUDA's, scaled."""
LONG_TOKENS = 32_768
"""Sequences from here on are long: attention is most of their steps."""


def step_kind(model: ModelConfig, layout: Parallelism) -> str:
    """The kind of a step (kinds have similar errors): long sequences, recurrent layers, experts, adapters, or dense."""
    if model.sequence_length >= LONG_TOKENS:
        return "long"
    if model.recurrent_heads:
        return "recurrent"
    return "experts" if model.experts else "adapters" if layout.lora_rank else "dense"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorsOfSource:
    """Quantiles of log(measured / predicted), ascending, of one source's steps of one model in one `timeline`, by
    `kind` of step (`step_kind`) and of `devices` (`cuda`, `rocm`); `unsteady` steps, whose repetitions scatter, are
    left out.
    """

    name: str
    publisher: str
    kind: str
    model: str
    timeline: str
    steps: int
    unsteady: int
    log_errors: tuple[float, ...]
    devices: str = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedError:
    """Mean log(measured / predicted) of a source's steps by a stack that was fitted to other devices."""

    stack: str
    name: str
    steps: int
    log_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepErrors:
    """Errors of several sources, and of stacks that were carried to other devices."""

    sources: tuple[ErrorsOfSource, ...] = ()
    carried: tuple[CarriedError, ...] = ()

    def __hash__(self) -> int:
        # What is drawn of them is looked up for every answer: all of them take longer.
        return hash(self.sources[:1])

    @lru_cache(maxsize=16)  # noqa: B019 - the shipped ones, or those without one publisher's
    def of(self, timeline: str) -> Self:
        return replace(self, sources=tuple(one for one in self.sources if one.timeline == timeline))

    def without(self, publisher: str, model: str = "") -> Self:
        """Errors without the steps of a publisher, or without its steps of one model."""
        left = {one.name for one in self.sources if one.publisher == publisher}
        return replace(
            self,
            sources=tuple(
                one for one in self.sources if one.name not in left or (model and one.model != model)
            ),
            carried=tuple(one for one in self.carried if one.name not in left),
        )

    def quantiles(self, levels: Sequence[float], kind: str = "", devices: str = "") -> NDArray[np.float64]:
        """Quantiles of log(measured / predicted), float64 [levels]; machines and kinds of step are equally weighted,
        kinds other than `kind` less (`OTHER_KINDS`), and other `devices` less (`OTHER_DEVICES`).
        """
        asked = ("kind", kind, OTHER_KINDS), ("devices", devices, OTHER_DEVICES)
        known = [one for one in asked if one[1] in {getattr(source, one[0]) for source in self.sources}]
        machines: dict[tuple[str, str], int] = {}
        for one in self.sources:
            key = (one.name, one.kind)
            machines[key] = machines.get(key, 0) + len(one.log_errors)
        values = np.concatenate([one.log_errors for one in self.sources])
        weights = np.concatenate(
            [
                np.full(
                    len(one.log_errors),
                    math.prod(weight for field, value, weight in known if getattr(one, field) != value)
                    / machines[one.name, one.kind],
                )
                for one in self.sources
            ]
        )
        order = np.argsort(values, kind="stable")
        ends = np.cumsum(weights[order])
        found: NDArray[np.float64] = np.interp(levels, (ends - weights[order] / 2) / ends[-1], values[order])
        return found

    def quantiles_elsewhere(
        self, levels: Sequence[float], kind: str = "", devices: str = ""
    ) -> NDArray[np.float64]:
        """Quantiles for a step that none of these K publishers measured, float64 [levels]; wider by √(1 + 1/K)."""
        publishers = len({one.publisher for one in self.sources})
        middle, found = (self.quantiles(one, kind, devices) for one in ([0.5], levels))
        wider: NDArray[np.float64] = middle + (found - middle) * math.sqrt(1 + 1 / publishers)
        return wider

    @property
    def carried_spread(self) -> float:
        """Root mean square of the carried errors; 0 where there are none."""
        squares = [one.log_error**2 for one in self.carried]
        return math.sqrt(sum(squares) / len(squares)) if squares else 0.0


def devices_of(bundle: Bundle) -> str:
    """The kind of a bundle's devices: `cpu`, `cuda` or `rocm`; empty if they are of several kinds."""
    kinds = {one.kind for one in bundle.manifest.compute}
    return kinds.pop() if len(kinds) == 1 else ""


@cache
def shipped_step_errors() -> StepErrors:
    """Errors of the steps in validate/."""
    table = json.loads(STEP_ERRORS.read_text(encoding="utf-8"))
    return StepErrors(
        sources=tuple(
            ErrorsOfSource(**{**row, "log_errors": tuple(row["log_errors"])}) for row in table["sources"]
        ),
        carried=tuple(CarriedError(**row) for row in table["carried"]),
    )


def never_compared(model: ModelConfig, layout: Parallelism, device_name: str) -> str:
    """How this step differs from all compared ones, in words, else ""; a device counts by its chip."""
    sources = shipped_step_errors().sources
    if layout.objective != "next_token":
        return "no step of DPO was compared"
    if layout.frozen_weights != "same":
        return "no step with weights in 4 bit was compared"
    if model.recurrent_heads and "recurrent" not in {one.kind for one in sources}:
        return "no step with recurrent layers was compared"
    words = re.split(r"[ -]", device_name.lower())
    is_known = not device_name or not _compared_chips().isdisjoint(words)
    return "" if is_known else f"no step on {device_name} was compared"


@cache
def _compared_chips() -> set[str]:
    parts = (part for one in shipped_step_errors().sources for part in one.name.split("-"))
    # Of Perlmutter and Vista, too.
    return {part for part in parts if re.fullmatch(r"[a-z]+\d+x?", part)} | {"a100", "gh200"}


def is_carried(stack: Stack | None, bundle: Bundle) -> bool:
    """Whether a stack was fitted to steps of other devices than the bundle's; one chip's memories do not matter."""
    if stack is None or not stack.runs:
        return False
    if bundle.digest in {one.bundle_digest for one in stack.runs}:
        return False
    here = [device_named(one.device_name) for one in bundle.manifest.compute]
    known = all_hardware()
    there = [device(known[one.asked].device) for one in stack.runs if one.asked in known]
    return not any(one.is_chip_of(other) for one in here if one for other in there)


DRAWS_CLOSED_FORM = 256
DRAWS_SIMULATED = 64
"""A simulation takes longer per draw."""
FEWEST_DRAWS = 16
_SIMULATED_CHUNKS = 8192
"""Chunks of all draws together, beyond which a simulation gets fewer draws."""
SEED = 20250922
LOW, HIGH = 0.05, 0.95
STEP_LOG_SPREAD = 0.080
"""Standard deviation of log(measured step / sum of operators) where no such step is known, as on CPUs: root mean square
of the errors that the method's authors published for their ten steps (arXiv 2509.22832; docs/trust.md, A step)."""
OWN_SHARE = 0.5
"""Of the spread that operators' intervals give log(step), where errors of measured steps join it, which have it too."""
_RESIDUAL: Key = ("calibration residual", Direction.ONCE)
_SPREAD = NormalDist().inv_cdf(HIGH)
"""Standard deviations between the median and the 95th percentile of a normal distribution."""


def draws_for(timeline: TimelineKind, chunks: int) -> int:
    """How many random draws an interval is made from: fewer for the simulation, and for many chunks."""
    if timeline == "closed-form":
        return DRAWS_CLOSED_FORM
    return min(DRAWS_SIMULATED, max(FEWEST_DRAWS, _SIMULATED_CHUNKS // chunks))


def drawn_times(
    times: OperatorTimes,
    questions: Sequence[Question],
    draws: int,
    factors: Factors | None = None,
) -> NDArray[np.float64]:
    """Times of questions in µs, float64 [questions, 1 + draws]: the predicted one, then random ones, log-normal on
    either side of it, with the ends of the interval as 5th and 95th percentile. All times of a regressor are equally
    too high or too low in a draw, as are all times that share one of the `factors`.
    """
    answers = np.array([times.answers[one] for one in questions], dtype=np.float64).reshape(-1, 3)
    found = np.empty((len(questions), 1 + draws))
    found[:, 0] = answers[:, 0]
    if draws and len(questions):
        median, low, high = np.log(answers.T)[:, :, None]
        normal = np.stack([_normal(times.sources[one], draws) for one in questions])
        found[:, 1:] = np.exp(median + np.where(normal < 0, median - low, high - median) / _SPREAD * normal)
        if factors is not None:
            spreads = (tuple(factors.log_spread_of(name)) for (name, _), _, _ in questions)
            found[:, 1:] *= np.stack([drawn_factors(spread, draws) for spread in spreads])
    return found


def unexplained(
    factors: Factors | None,
    draws: int,
    errors: StepErrors,
    kind: str = "",
    devices: str = "",
    *,
    is_carried: bool = False,
) -> NDArray[np.float64]:
    """Random factors of a whole step, float64 [draws]: what sums of operators get wrong. With factors, what the
    measured steps kept after the correction; else the `errors` of steps measured elsewhere, or a prior,
    `STEP_LOG_SPREAD`.
    """
    residual = None if factors is None else factors.residual
    if residual is None and errors.sources:
        return _drawn_errors(errors, kind, devices, draws)
    spread = STEP_LOG_SPREAD if residual is None else residual
    if is_carried:
        spread = math.hypot(spread, errors.carried_spread)
    found: NDArray[np.float64] = np.exp(spread * _normal(_RESIDUAL, draws))
    return found


def around(
    time: float, drawn: NDArray[np.float64], factors: Factors | None, errors: StepErrors
) -> NDArray[np.float64]:
    """Random times of a step, float64 [draws], which errors of the step are to multiply; those had errors of operators
    in them, so they are centred on the predicted `time` and count with `OWN_SHARE`.
    """
    if (factors is not None and factors.residual is not None) or not errors.sources:
        return drawn
    found: NDArray[np.float64] = time * (drawn / quantile(sorted(map(float, drawn)), 0.5)) ** OWN_SHARE
    return found


def interval(time: float, drawn: Sequence[float] | NDArray[np.float64]) -> tuple[float, float]:
    """5th and 95th percentile of what was drawn, widened to hold `time` itself; without draws `time` twice."""
    if not len(drawn):
        return time, time
    ordered = sorted(map(float, drawn))
    return min(time, quantile(ordered, LOW)), max(time, quantile(ordered, HIGH))


def quantile(ordered: Sequence[float], level: float) -> float:
    """`np.quantile` of rising numbers, to the last bit: numpy's imports numpy.ma for it, for 12 ms.

    >>> quantile([1.0, 2.0, 4.0], 0.75)
    3.0
    """
    place = (len(ordered) - 1) * level
    below = math.floor(place)
    low, high, share = ordered[below], ordered[min(below + 1, len(ordered) - 1)], place - below
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)


@lru_cache(maxsize=64)
def drawn_factors(log_spread: tuple[float, ...], draws: int) -> NDArray[np.float64]:
    """Random factors, float64 [draws], around a correction's own; all factors of one correction share their draws."""
    # "calibration": what the numbers have been drawn by since there was no other correction.
    normal = [_normal((f"calibration {index}", Direction.ONCE), draws) for index in range(len(log_spread))]
    logs = sum((weight * z for weight, z in zip(log_spread, normal, strict=True)), np.zeros(draws))
    found: NDArray[np.float64] = np.exp(logs)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=64)
def _drawn_errors(errors: StepErrors, kind: str, devices: str, draws: int) -> NDArray[np.float64]:
    """Random measured / predicted, float64 [draws]."""
    levels = list(map(NormalDist().cdf, _normal(_RESIDUAL, draws).tolist()))
    found: NDArray[np.float64] = np.exp(errors.quantiles_elsewhere(levels, kind, devices))
    found.flags.writeable = False
    return found


@lru_cache(maxsize=1024)
def _normal(key: Key, draws: int) -> NDArray[np.float64]:
    """Standard normal numbers of one regressor, float64 [draws], by Latin hypercube sampling (McKay et al.,
    Technometrics 21, 1979): percentiles settle with far fewer draws.
    """
    slices = list(_middles(draws))
    # Not numpy's generators: they take longer to import than everything here to compute.
    Random(f"{SEED} {key[0]} {key[1]}").shuffle(slices)
    shuffled = np.array(slices)
    shuffled.flags.writeable = False
    return shuffled


@lru_cache(maxsize=16)
def _middles(draws: int) -> tuple[float, ...]:
    """Standard normal numbers in the middle of equally likely slices, rising."""
    normal = NormalDist()
    return tuple(normal.inv_cdf((index + 0.5) / draws) for index in range(draws))
