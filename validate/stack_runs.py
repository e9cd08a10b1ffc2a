"""A stack fitted to runs files: before, and with every model (or layout) left out in turn.

The logarithms of the three factors have a normal prior; log(measured / predicted) of a step is normal around 0. A step
is linearised in the logarithms, solved, and linearised again until they converge (Gauss-Newton); the residual spread is
found along with them (docs/stacks.md).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime import UsageError
from kernelcast.runtime.errors import one_line, shown
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.request.fields import LAYOUT
from kernelcast.runtime.stack import (
    DEFAULT_SHARE,
    LARGEST_FACTOR,
    NAMES,
    OPTIONS,
    FittedRuns,
    LeftOut,
    Stack,
    factor_index,
    stack_named,
)
from kernelcast.validate.reweighted import reweighted_step_s
from kernelcast.validate.runs import MeasuredRun
from kernelcast.validate.steps import AskedFile, Score, ScoredStep, asked_files

Array = NDArray[np.float64]

PRIOR: Mapping[str, tuple[float, float]] = {
    "attention": (1.0, 0.15),
    "compute": (1.0, 0.15),
    "exposed_share": (DEFAULT_SHARE, 0.5),
}
"""Median of every factor before any step is seen, and the standard deviation of its logarithm. A share between 0.11 and
0.57 (90 %) holds the quarter (A100) to half (H100) of the gathers that FSDP steps show."""
RESIDUAL, RESIDUAL_STEPS = 0.05, 2.0
"""The residual spread before any step is seen (the mean error of the method's authors' predictions), and how many steps
that counts as."""

_EXPOSED = NAMES.index("exposed_share")
_STEP = 1e-3  # of logarithms, for derivatives
_ITERATIONS, _CONVERGED = 30, 1e-6
_DECIMALS = 6  # kept in the file: the last bits of linear algebra differ between machines


def _column(operator: str) -> int:
    index = factor_index(operator)
    return _EXPOSED if index is None else index


@dataclass(frozen=True, slots=True)
class FittedStep:
    """A measured step, and its prediction without a stack as a function of the logarithms of the factors."""

    run: MeasuredRun
    estimate: Estimate

    def step_s(self, logs: Array) -> Array:
        """Times of the step, float64 [settings], for logarithms [settings, 3]: all of one exposed share."""
        # Collectives, in the last column, keep their time.
        factors = np.exp(np.column_stack([logs[:, :_EXPOSED], np.zeros(len(logs))]))
        share = min(1.0, math.exp(logs[0, _EXPOSED]))
        layout = replace(self.estimate.parallelism, exposed_share=share)
        return reweighted_step_s(self.estimate, factors, _column, layout)

    def linearised(self, logs: Array) -> tuple[float, Array]:
        """log(measured / predicted), and the derivatives of the predicted logarithm by the factors' logarithms [3]."""
        moved = logs + _STEP * np.eye(len(NAMES))
        times_s = self.step_s(np.vstack([logs, moved[:_EXPOSED]]))
        # Downwards: the share ends at 1.
        less_s = self.step_s((logs - _STEP * np.eye(len(NAMES))[_EXPOSED])[None])
        slopes = np.append(np.log(times_s[1:] / times_s[0]), np.log(times_s[0] / less_s[0])) / _STEP
        return math.log(self.run.measured_s / float(times_s[0])), slopes


def fit(steps: Sequence[FittedStep], fixed: Mapping[str, float]) -> Stack:
    """A stack of the factors that explain the steps; those `fixed` keep their value.

    A model's n steps count as √n: between one, as if their errors were all the same, and n, as if they were
    independent. UsageError without steps, or for a fixed factor that is unknown or out of bounds.
    """
    check_fixed(fixed)
    if not steps:
        raise UsageError("there are no measured steps, expected at least one")
    medians = np.log([PRIOR[name][0] for name in NAMES])
    free = np.array([name not in fixed for name in NAMES])
    precision = np.diag([1 / PRIOR[name][1] ** 2 for name in NAMES])[np.ix_(free, free)]
    logs = medians.copy()
    # The logarithm of 0 is never used in a product.
    logs[~free] = [math.log(max(fixed[name], 1e-9)) for name in NAMES if name in fixed]
    per_model = Counter(step.run.model.name for step in steps)
    weights = np.array([1 / math.sqrt(per_model[step.run.model.name]) for step in steps])
    largest = math.log(LARGEST_FACTOR)
    variance, covariance = RESIDUAL**2, np.zeros((len(NAMES), len(NAMES)))
    for iteration in range(_ITERATIONS):
        rows = [step.linearised(logs) for step in steps]
        left = np.array([one for one, _ in rows])
        slopes = np.array([slope for _, slope in rows])[:, free]
        weighted = slopes.T * weights / variance
        inverse = np.linalg.inv(weighted @ slopes + precision)
        moved = inverse @ (weighted @ left - precision @ (logs - medians)[free])
        # Half steps later on: whole ones can oscillate between two pieces of a maximum.
        moved = moved if iteration < _ITERATIONS // 2 else moved / 2
        logs[free] = np.clip(logs[free] + moved, -largest, largest)
        logs[_EXPOSED] = min(logs[_EXPOSED], 0.0)
        covariance[np.ix_(free, free)] = inverse
        rest = left - slopes @ moved
        previous = variance
        variance = (RESIDUAL_STEPS * RESIDUAL**2 + float(weights @ rest**2)) / (
            RESIDUAL_STEPS + float(weights.sum())
        )
        if np.abs(moved).max(initial=0.0) < _CONVERGED and abs(variance / previous - 1) < 1e-3:
            break
    off_prior = (logs - medians)[free]
    variance, seen = _left_out_variance(steps, left, slopes, weights, variance, precision, off_prior)
    residual = math.sqrt(variance) * _students_factor(RESIDUAL_STEPS + seen)
    return _stack(steps, logs, covariance, residual, fixed)


def _stack(
    steps: Sequence[FittedStep], logs: Array, covariance: Array, residual: float, fixed: Mapping[str, float]
) -> Stack:
    """The stack of a solution, with the options that all steps state."""
    found = [
        fixed.get(name, round(float(one), _DECIMALS)) for name, one in zip(NAMES, np.exp(logs), strict=True)
    ]
    symmetric = np.round((covariance + covariance.T) / 2, 9) + 0.0
    attention, compute, exposed_share = found
    layouts = [step.run.parallelism for step in steps]
    options = {name: getattr(layouts[0], name) for name in OPTIONS}
    return Stack(
        name="fitted",
        software="not stated",
        source="measured steps",
        attention=attention,
        compute=compute,
        exposed_share=exposed_share,
        # Defaults are left out.
        options={
            name: value
            for name, value in options.items()
            if value != LAYOUT[name].default and all(getattr(one, name) == value for one in layouts)
        },
        residual=round(residual, _DECIMALS),
        log_covariance=tuple(map(tuple, symmetric.tolist())),
        fixed=tuple(fixed),
    )


def _left_out_variance(
    steps: Sequence[FittedStep],
    left: Array,
    slopes: Array,
    weights: Array,
    variance: float,
    precision: Array,
    off_prior: Array,
) -> tuple[float, float]:
    """What the factors leave of steps of a left-out model (or layout), models equally weighted.

    The variance, and how many independent errors it was seen in: a model's (a layout's) steps have one.

    From the last linearisation: log(measured / predicted) `left` [steps], derivatives `slopes` [steps, factors] of the
    predicted logarithm, and how far the factors are `off_prior`. In-sample `variance` where nothing can be left out.
    What the factors' uncertainty explains of it is taken out.
    """
    _, groups = left_out_by([step.run for step in steps])
    names = dict.fromkeys(groups)
    if len(names) < 2:
        return variance, float(weights.sum())
    total = RESIDUAL_STEPS * RESIDUAL**2
    for name in names:
        out = np.array([own == name for own in groups])
        weighted = slopes[~out].T * weights[~out] / variance
        covariance = np.linalg.inv(weighted @ slopes[~out] + precision)
        moved = covariance @ (weighted @ left[~out] - precision @ off_prior)
        # An interval adds the factors' own uncertainty to the residual: it is not counted twice.
        of_factors = np.einsum("si,ij,sj->s", slopes[out], covariance, slopes[out])
        total += max(0.0, float(np.mean((left[out] - slopes[out] @ moved) ** 2 - of_factors)))
    return total / (RESIDUAL_STEPS + len(names)), len(names)


def _students_factor(degrees: float) -> float:
    """Student's t over the normal distribution at their 95th percentile: a variance seen in few errors is not known.

    By Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5; within 0.2 % from 4 degrees of freedom.
    """
    z = NormalDist().inv_cdf(0.95)
    return (
        1
        + (z**2 + 1) / (4 * degrees)
        + (5 * z**4 + 16 * z**2 + 3) / (96 * degrees**2)
        + (3 * z**6 + 19 * z**4 + 17 * z**2 - 15) / (384 * degrees**3)
    )


def check_fixed(fixed: Mapping[str, float]) -> None:
    """Check the factors of --fix; UsageError for one that is unknown or out of bounds."""
    for name, value in fixed.items():
        if name not in NAMES:
            raise UsageError(f"fixed {shown(name)} is unknown, expected one of {', '.join(NAMES)}")
        low, high = (0.0, 1.0) if name == "exposed_share" else (1 / LARGEST_FACTOR, LARGEST_FACTOR)
        if not low <= value <= high:
            raise UsageError(f"fixed {name} is {value:g}, expected {low:g} to {high:g}")


def left_out_by(steps: Sequence[MeasuredRun]) -> tuple[str, list[str]]:
    """What is left out in turn, and whose each step is: models; layouts (pp-tp-dp) where there is one model alone."""
    models = [step.model.name for step in steps]
    if len(set(models)) > 1:
        return "model", models
    return "layout", [layout_name(step) for step in steps]


def layout_name(run: MeasuredRun) -> str:
    """A run's degrees, as in `2-1-4`."""
    layout = run.parallelism
    return f"{layout.pp}-{layout.tp}-{layout.dp}" + (f"-cp{layout.cp}" if layout.cp > 1 else "")


_UNSTEADY = "its repetitions scatter (mean_s); it is scored anyway"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackScore:
    """Figures of a model's or layout's steps without the stack, and with factors fitted to the others' steps alone."""

    before: Score
    left_out: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedStack:
    """A stack and its errors. `scores` are empty without cross-validation; the last of several is for all steps.

    `left_out_by` is "model" or "layout"; `unpredicted` says which steps had no part, and why. `left_out_steps` are the
    steps, each by factors that were fitted without its model (or layout), with the name of their file.
    """

    stack: Stack
    left_out_by: str
    scores: tuple[StackScore, ...]
    after: Score
    before: Score
    unpredicted: tuple[tuple[str, str], ...]
    left_out_steps: tuple[tuple[str, ScoredStep], ...] = ()

    @property
    def helps(self) -> bool | None:
        """Whether it reduces the cross-validated error; None without cross-validation."""
        if not self.scores:
            return None
        last = self.scores[-1]
        return (last.left_out.mean_abs_error or 0.0) < (last.before.mean_abs_error or 0.0)


def fit_stack(
    paths: Sequence[Path],
    *,
    name: str,
    software: str = "",
    kernel: str | None = None,
    fixed: Mapping[str, float] | None = None,
    bundle: str = "",
    fabric: str = "",
) -> FittedStack:
    """Fit a stack to the steps of runs files, each predicted as `score_steps` does; a bundle's calibration is not used.

    `software` defaults to the files' `stack`; `kernel` is the kernel of fused attention in the steps, if known.
    UsageError where no step can be predicted, or for a wrong fixed factor; other errors as `score_steps`.
    """
    files, fixed = asked_files(paths, bundle=bundle, fabric=fabric), fixed or {}
    plain = stack_named("none")
    scored = [(one, step) for one in files for step in one.score(plain)]
    known = [(one, step) for one, step in scored if step.estimate is not None]
    if not known:
        raise UsageError(f"no step can be predicted, expected one that can: {scored[0][1].reason}")
    steps = [FittedStep(step.run, step.estimate) for _, step in known if step.estimate]
    whole = fit(_steady(steps), fixed)
    by, groups = left_out_by([step.run for step in steps])
    left_out = _left_out(known, steps, groups, fixed)
    scores = [
        StackScore(
            before=Score.of(group, _part([step for _, step in known], groups, group)),
            left_out=Score.of(group, _part(left_out, groups, group)),
        )
        for group in ((*dict.fromkeys(groups), "all") if left_out else ())
    ]
    after_all = Score.of("all", [one.score(whole, [step.run])[0] for one, step in known])
    scores_before = Score.of("all", [step for _, step in known])
    stated = software or "; ".join(dict.fromkeys(one.file.stack or one.file.site for one in files))
    return FittedStack(
        stack=replace(
            whole,
            name=name,
            software=one_line(stated),
            kernel=kernel,
            source=one_line("; ".join(dict.fromkeys(one.file.source for one in files))),
            error_before=_rounded(scores_before.mean_abs_error),
            error_after=_rounded(after_all.mean_abs_error),
            runs=_fitted_runs(known),
            left_out=tuple(map(_stored, scores[:-1])),
        ),
        left_out_by=by,
        left_out_steps=tuple((one.path.name, out) for (one, _), out in zip(known, left_out, strict=False)),
        scores=tuple(scores),
        before=scores_before,
        after=after_all,
        unpredicted=(
            *((step.run.label, step.reason) for _, step in scored if step.estimate is None),
            *((step.run.label, _UNSTEADY) for _, step in known if not step.run.is_steady),
        ),
    )


def _left_out(
    known: Sequence[tuple[AskedFile, ScoredStep]],
    steps: Sequence[FittedStep],
    groups: Sequence[str],
    fixed: Mapping[str, float],
) -> list[ScoredStep]:
    """Each step by factors that were fitted without its group; none where there is one group alone."""
    names = list(dict.fromkeys(groups))
    if len(names) < 2:
        return []
    without = {
        name: fit(_steady([step for step, own in zip(steps, groups, strict=True) if own != name]), fixed)
        for name in names
    }
    return [
        one.score(without[group], [step.run])[0] for (one, step), group in zip(known, groups, strict=True)
    ]


def _part(steps: Sequence[ScoredStep], groups: Sequence[str], group: str) -> list[ScoredStep]:
    return [step for step, own in zip(steps, groups, strict=True) if group in (own, "all")]


def _fitted_runs(known: Sequence[tuple[AskedFile, ScoredStep]]) -> tuple[FittedRuns, ...]:
    counts = Counter(one.path for one, step in known if step.run.is_steady)
    files = {one.path: one for one, _ in known}
    return tuple(
        FittedRuns(
            file=path.name,
            **values_of(files[path], "file.digest", "asked", bundle_digest="estimator.bundle.digest"),
            fabric=files[path].fabric_name,
            steps=count,
        )
        for path, count in counts.items()
    )


def _stored(score: StackScore) -> LeftOut:
    return LeftOut(
        name=score.before.model,
        steps=score.before.steps,
        error_before=_rounded(score.before.mean_abs_error),
        error_left_out=_rounded(score.left_out.mean_abs_error),
    )


def _steady(steps: Sequence[FittedStep]) -> list[FittedStep]:
    """The steps whose repetitions agree; all of them where no step's do."""
    return [step for step in steps if step.run.is_steady] or list(steps)


def _rounded(error: float | None) -> float:
    return round(error or 0.0, _DECIMALS)
