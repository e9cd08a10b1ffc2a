"""Measured times of components that the authors' published errors imply.

The method's authors publish the error of their prediction for each component of a measured step, but neither the
prediction nor the measured time. Their data and their regressors' settings are public, so we reproduce their
predictions: one regressor per operator, direction and layout, fitted on their rows. Then
measured = predicted / (1 + published error). The components' sum against the measured step
(`ComparedRun.implied_step_s`) shows the accuracy: their forests have no published seed, and answers of their release
differ from the published ones by a few tenths of a percent to two percent.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from kernelcast.runtime import DataError, Estimate
from kernelcast.runtime.answers.asking import Question, question
from kernelcast.runtime.estimate.components import components_of
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.store import Sample
from kernelcast.store.importers import Parsed, PublishedError
from kernelcast.validate.reweighted import step_by
from kernelcast.validate.runs import MeasuredRun

_SEED = 0
_NO_LAYOUT = (0, 0)

Array = npt.NDArray[np.float64]
_Key = tuple[str, str, Direction, tuple[int, int]]
"""Operator, role, direction, and layout of a collective (nodes, GPUs per node), else zeros."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorsRegressors:
    """The authors' regressors of one dtype, each fitted on first use: `settings` and rows by key."""

    settings: Mapping[_Key, PublishedError]
    rows: Mapping[_Key, Sequence[Sample]]
    fitted: dict[_Key, Any]

    @classmethod
    def of(cls, parsed: Parsed, published: Iterable[PublishedError], *, dtype: str) -> Self:
        """The rows of `dtype` in `parsed`, with the published settings."""
        rows: dict[_Key, list[Sample]] = defaultdict(list)
        for batch in parsed.runs:
            for sample in batch.samples:
                if sample.dtype == dtype and sample.time_us is not None:
                    rows[_key(sample.operator, sample.role, sample.direction, sample.vector)].append(sample)
        settings = {
            (one.operator, one.role, one.direction, (one.nodes or 0, one.gpus_per_node or 0)): one
            for one in published
            if one.dtype == dtype
        }
        return cls(settings=settings, rows=rows, fitted={})

    def time_us(self, asked: Question) -> float:
        """Their answer to a question; NaN where they published no regressor."""
        (operator, direction), vector, role = asked
        parts = {part: len(parts) for whole, parts in OPERATORS[operator].sums.items() for part in parts}
        key = _key(operator, role, self._published(asked), vector)
        if key not in self.settings or key not in self.rows:
            return nan
        if key not in self.fitted:
            self.fitted[key] = _fit(self.settings[key], self.rows[key])
        return float(self.fitted[key].predict(_workloads([vector]))[0]) / parts.get(direction, 1)

    @staticmethod
    def _published(asked: Question) -> Direction:
        """The direction that they measured: for a linear's two gradients their sum."""
        (operator, direction), _, _ = asked
        sums = OPERATORS[operator].sums
        return next((whole for whole, parts in sums.items() if direction in parts), direction)

    def components(self, run: MeasuredRun, estimate: Estimate) -> Mapping[str, float] | None:
        """Measured seconds that the published errors of a run's components imply; None without published errors.

        `estimate` is any prediction of the run and gives the calls. Operators for which the authors have no regressor
        count as zero, as in their prediction.
        """
        if not run.published_components:
            return None
        answers: dict[Question, float] = {}

        def times_us(asked: Sequence[Question]) -> Array:
            answers.update((one, self.time_us(one)) for one in asked)
            return np.nan_to_num([[answers[one]] for one in asked])

        step = step_by(estimate, times_us, estimate.parallelism)
        if all(map(isnan, answers.values())):
            return None
        predicted = components_of(
            estimate.parts, step, lambda call: float(np.nan_to_num(answers[question(call)]))
        ).to_dict()
        return {
            name: predicted[name] / (1 + error)
            for name, error in run.published_components.items()
            if predicted[name] > 0
        }

    def ask_ahead(self, asked: Sequence[Question], on_progress: Callable[[int, int, str], None]) -> None:
        """Fit the regressors that the questions need, reporting progress."""
        keys = dict.fromkeys(
            _key(key[0], role, self._published((key, vector, role)), vector) for key, vector, role in asked
        )
        needed = [key for key in keys if key in self.settings and key in self.rows and key not in self.fitted]
        for done, key in enumerate(needed, start=1):
            self.fitted[key] = _fit(self.settings[key], self.rows[key])
            on_progress(done, len(needed), key[0])


def _key(operator: str, role: str, direction: Direction, vector: Sequence[int]) -> _Key:
    if OPERATORS[operator].is_collective:
        _, nodes, gpus_per_node = vector
        return operator, role, direction, (nodes, gpus_per_node)
    return operator, role, direction, _NO_LAYOUT


def _workloads(vectors: Sequence[Sequence[int]]) -> Array:
    return np.array(vectors, dtype=np.float64)


def _fit(settings: PublishedError, samples: Sequence[Sample]) -> Any:
    """One regressor of theirs, trees on the workload vector with the time in µs as target; DataError for others."""
    try:
        if settings.algorithm == "random_forest":
            from sklearn.ensemble import RandomForestRegressor

            regressor = RandomForestRegressor(**settings.hyperparameters, random_state=_SEED, n_jobs=1)
        else:
            from xgboost import XGBRegressor

            regressor = XGBRegressor(**settings.hyperparameters, random_state=_SEED, n_jobs=1)
        times_us = np.array([sample.time_us for sample in samples], dtype=np.float64)
        return regressor.fit(_workloads([sample.vector for sample in samples]), times_us)
    except (TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise DataError(
            f"published settings of {settings.operator} ({settings.direction}): cannot be fitted ({reason})"
        ) from error
