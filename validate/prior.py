"""A new device from a few points: a prior corrected by some of a database's rows, compared with the others.

Of each operator a fifth of the workloads is held out; points are chosen among the others as `collect compute --prior
--points` chooses them, or at random. Errors are mean absolute relative errors per operator and direction, and per role.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.json_text import plain_values
from kernelcast.runtime.operators import Key
from kernelcast.store import Database
from kernelcast.train.dataset import Array, Table, aligned, tables
from kernelcast.train.prior import MOST_CANDIDATES, Prior, corrected, most_telling
from kernelcast.train.regressor import all_candidates, fit
from kernelcast.train.scope import Scope, measured_peaks
from kernelcast.train.screening import screen, statistic_of_all

FORMAT = "kernelcast.prior_validation/1"
WAYS = ("telling", "random", "without prior")
"""Points chosen by information; drawn at random; drawn at random, with a regressor fitted only to them."""
_HELD_OUT_SHARE = 0.2
_MOST_HELD_OUT = 400
# What collect compute runs of a point at least: ten calls to warm up, and two blocks of fifteen.
_CALLS = 40
_US_PER_MINUTE = 60e6


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorErrors:
    """Errors of one operator and direction, fractions, on average over the draws; `roles` of each of its roles.

    `coverage` is the share of held-out rows within their 90 % interval; None without a prior.
    """

    operator: str
    direction: str
    error: float
    roles: Mapping[str, float]
    coverage: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointsErrors:
    """Errors with `points` of each operator, found in one of the `WAYS`.

    `minutes` are those that the device runs calls of these points when they are measured, without the profiler's
    overhead.
    """

    points: int
    way: str
    minutes: float
    operators: tuple[OperatorErrors, ...]

    @property
    def of_directions(self) -> Array:
        return np.array([one.error for one in self.operators])

    @property
    def of_roles(self) -> Array:
        """Errors by operator, direction and role; roles of an operator share its points."""
        return np.array([error for one in self.operators for error in one.roles.values()])

    @property
    def coverage(self) -> float | None:
        found = [one.coverage for one in self.operators if one.coverage is not None]
        return float(np.mean(found)) if found else None

    def to_dict(self) -> dict[str, Any]:
        return {
            **plain_values(self, "points", "way"),
            "median_error": float(np.median(self.of_directions)),
            "mean_error": float(np.mean(self.of_directions)),
            "median_role_error": float(np.median(self.of_roles)),
            "mean_role_error": float(np.mean(self.of_roles)),
            **plain_values(self, "coverage", "minutes", "operators"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorValidation:
    """Errors by number of points and way. `uncorrected` are the errors of the prior scaled by peaks alone."""

    prior: str
    target: str
    scaled_by: str
    draws: int
    left_out: tuple[str, ...]
    uncorrected: PointsErrors
    found: tuple[PointsErrors, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form `kernelcast.prior_validation/1` (docs/json.md)."""
        return {
            "format": FORMAT,
            **plain_values(self, "prior", "target", "scaled_by", "draws", "left_out", "uncorrected", "found"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """Errors of one draw of one operator and direction: overall, by role, inside the interval; µs of its points."""

    error: float
    roles: Mapping[str, float]
    inside: float | None
    calls_us: float


def validate_prior(
    bundle: Bundle,
    database: Database,
    *,
    points: Sequence[int] = (5, 20),
    ways: Sequence[str] = WAYS,
    without: Sequence[str] = (),
    draws: int = 5,
    on_progress: Callable[[int, int, str], None] = lambda done, total, operator: None,
) -> PriorValidation:
    """Correct the prior `bundle` by points of the database's device, and compare with held-out rows.

    `without` leaves out operators, or one of their roles: `flash_attention`, `adam:first_stage`. UsageError where the
    database holds several devices, kinds of software or dtypes, DataError without anything that the prior answers.
    """
    scope = Scope.choose(database, dtype="", hardware="", software="", fabric="")
    statistic = statistic_of_all(scope.samples)
    fabric = scope.fabric[0] if scope.fabric else None
    where = str(database.path)
    screened = screen(
        scope.samples, statistic=statistic, where=where, compute=scope.compute[0], fabric=fabric
    )
    found = tables(
        (row for row in screened.rows if not {row.operator, f"{row.operator}:{row.role}"} & set(without)),
        statistic=statistic,
    )
    prior = Prior.of(bundle, scope.compute[0], scope.dtype, measured_peaks(scope, found))
    by_operator: dict[str, list[Table]] = {}
    for table in found:
        if (table.operator, table.direction) in prior and table.processes_per_node == 1:
            by_operator.setdefault(table.operator, []).append(table)
    most = 2 * max(points)
    same_workloads = {name: aligned(own) for name, own in by_operator.items()}
    enough = {name: own for name, own in same_workloads.items() if len(own[0]) >= most}
    if not enough:
        raise DataError(f"{where}: no operator of the prior has {most} workloads, expected some that do")
    plans = [(0, "telling"), *((count, way) for count in points for way in ways)]
    trials: dict[tuple[int, str], dict[Key, list[_Trial]]] = {plan: {} for plan in plans}
    for number, (name, own) in enumerate(enough.items()):
        for draw in range(draws):
            for plan, key, trial in _trials(prior, own, plans, seed=draw, statistic=statistic):
                trials[plan].setdefault(key, []).append(trial)
        on_progress(number + 1, len(enough), name)
    uncorrected, *rest = (_summed(count, way, found_trials) for (count, way), found_trials in trials.items())
    return PriorValidation(
        prior=prior.name,
        target=prior.target.device,
        scaled_by=prior.scaled_by,
        draws=draws,
        left_out=(*without, *(name for name in same_workloads if name not in enough)),
        uncorrected=uncorrected,
        found=tuple(rest),
    )


def _trials(
    prior: Prior, own: Sequence[Table], plans: Sequence[tuple[int, str]], *, seed: int, statistic: str
) -> Iterator[tuple[tuple[int, str], Key, _Trial]]:
    """One draw of one operator, all directions, with every number of points and way."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(own[0]))
    cut = int(_HELD_OUT_SHARE * len(order))
    held_out, others = order[:cut][:_MOST_HELD_OUT], order[cut:]
    keys = [(table.operator, table.direction) for table in own]
    most = max(count for count, _ in plans)
    candidates = others[:MOST_CANDIDATES]
    telling = candidates[most_telling(prior, keys, own[0].workloads[candidates], most)]
    for count, way in plans:
        rows = (telling if way == "telling" else others)[:count]
        for key, table in zip(keys, own, strict=True):
            known, asked = table.part(rows), table.part(held_out)
            inside = None
            if way == "without prior":
                predicted_us = _alone(known, seed).predict_us(asked.workloads)
            else:
                entry = corrected(prior, known, statistic=statistic) if count else prior.carried(key)
                answers = Predictor(replace(prior.bundle, entries=MappingProxyType({key: entry}))).answers(
                    *key, asked.workloads
                )
                predicted_us = answers[:, 0]
                inside = float(np.mean((answers[:, 1] <= asked.times_us) & (asked.times_us <= answers[:, 2])))
            errors = np.abs(predicted_us / asked.times_us - 1)
            trial = _Trial(
                error=float(errors.mean()),
                roles=asked.by_role(errors),
                inside=inside,
                calls_us=_CALLS * float(known.times_us.sum()),
            )
            yield (count, way), key, trial


def _alone(table: Table, seed: int) -> Any:
    """A regressor of the points alone: a roofline with stumps on what it leaves."""
    every = all_candidates().every
    candidate = next(one for one in every if one.form == "roofline" and one.algorithm == "xgboost")
    return fit(candidate, table, seed)


def _summed(count: int, way: str, trials: Mapping[Key, Sequence[_Trial]]) -> PointsErrors:
    """Means over the draws."""
    operators = []
    for (operator, direction), own in sorted(trials.items()):
        inside = [one.inside for one in own if one.inside is not None]
        names = dict.fromkeys(role for one in own for role in one.roles)
        roles = {
            role: float(np.mean([one.roles[role] for one in own if role in one.roles])) for role in names
        }
        operators.append(
            OperatorErrors(
                operator=operator,
                direction=direction.value,
                error=float(np.mean([one.error for one in own])),
                roles=roles,
                coverage=float(np.mean(inside)) if inside else None,
            )
        )
    calls_us = sum(float(np.mean([one.calls_us for one in own])) for own in trials.values())
    return PointsErrors(points=count, way=way, minutes=calls_us / _US_PER_MINUTE, operators=tuple(operators))
