"""Random draws of a step over a stack's uncertain share of exposed collectives."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.answers.uncertainty import drawn_factors
from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.estimate.engine import Engine
from kernelcast.runtime.request.fields import TimelineKind
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.stack import NAMES, Stack
from kernelcast.runtime.step.layouts import Layouts

_LOG_STEP = 0.1
"""Of the share, down, so that it stays below 1."""


def exposed_draws(
    stack: Stack,
    engine: Engine,
    parallelism: Parallelism,
    timeline: TimelineKind,
    *,
    step_us: float,
    draws: int,
) -> NDArray[np.float64]:
    """Random factors of a step, float64 [draws], from the uncertainty of `stack`'s exposed share.

    `step_us` is the predicted step; a second step is predicted with a slightly smaller share.
    """
    spread = stack.spread[NAMES.index("exposed_share")]
    if not any(spread) or not parallelism.exposed_share:
        return np.ones(draws)
    less = replace(parallelism, exposed_share=parallelism.exposed_share * math.exp(-_LOG_STEP))
    [step] = engine.configurations(Layouts.of(less))
    slope = math.log(step_us / float(step.times(timeline).step_us[0])) / _LOG_STEP
    return drawn_factors(tuple(slope * one for one in spread), draws)
