"""The step of an estimate with its operators' times multiplied: what fits to measured steps evaluate."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime import Estimate
from kernelcast.runtime.answers.asking import Question
from kernelcast.runtime.estimate.configurations import Configurations
from kernelcast.runtime.estimate.engine import Engine
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.step.layouts import Layouts

_US_PER_S = 1e6

Array = NDArray[np.float64]


def reweighted_step_s(
    estimate: Estimate, factors: Array, column_of: Callable[[str], int], parallelism: Parallelism
) -> Array:
    """Times of the step, float64 [settings], for factors [settings, columns]; `column_of` an operator is its column."""

    def times_us(asked: Sequence[Question]) -> Array:
        columns = [column_of(operator) for (operator, _), _, _ in asked]
        own = np.array([estimate.answers[one][0] for one in asked])
        return own[:, None] * factors.T[columns]

    step = step_by(estimate, times_us, parallelism, draws=len(factors) - 1)
    return step.times(estimate.timeline).step_us / _US_PER_S


def step_by(
    estimate: Estimate,
    times_us: Callable[[Sequence[Question]], Array],
    layout: Parallelism,
    *,
    draws: int = 0,
) -> Configurations:
    """The step of an estimate in a layout, its operators' times as `times_us` answers them."""
    engine = Engine(
        estimate.model,
        estimate.cluster,
        estimate.bucket_entries,
        times_us,
        draws=draws,
        element_bytes=estimate.parts.element_bytes,
    )
    [step] = engine.configurations(Layouts.of(layout))
    return step
