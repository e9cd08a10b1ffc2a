"""A step to predict: its cluster, its layers balanced by time, the source of its times, and its time."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Self

from kernelcast.runtime.answers.asking import kernel_change
from kernelcast.runtime.answers.bundle_times import BundleTimes, check_format
from kernelcast.runtime.answers.collective_times import Collectives, CollectiveSource, collective_source
from kernelcast.runtime.answers.fabric_choice import FabricChoice
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.answers.uncertainty import drawn_factors
from kernelcast.runtime.bundle.calibration import Factors
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.estimate.configurations import Configurations
from kernelcast.runtime.estimate.defaults import (
    chosen_gpus_per_node,
    host_link_bytes_per_s,
    usual_gpus_per_node,
)
from kernelcast.runtime.estimate.engine import Engine
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.memory.states import precision_of
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.request.fields import TimelineKind
from kernelcast.runtime.request.layout import Cluster, Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.schedule import check_simulated
from kernelcast.runtime.step.decomposition import Decomposition, decompose
from kernelcast.runtime.step.layouts import Layouts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kernelcast.runtime.stack import Stack

_US_PER_S = 1e6
_LOG_STEP = 0.1
"""Of the exposed share, down, so that it stays below 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """A step of `model` on `cluster`; `over` answers the collectives, `processes` compute at once on the fullest node,
    `times` makes what answers questions, `engine_of` an engine that asks it.
    """

    model: ModelConfig
    parallelism: Parallelism
    cluster: Cluster
    cluster_source: str
    bucket_entries: int
    element_bytes: int
    timeline: TimelineKind
    over: CollectiveSource | None
    processes: int
    factors: Factors | None
    times: Callable[..., BundleTimes]
    engine_of: Callable[..., Engine]

    @classmethod
    def of(
        cls,
        predictor: Predictor,
        model: ModelConfig,
        parallelism: Parallelism,
        cluster: Cluster | None,
        bucket_entries: int,
        timeline: TimelineKind,
        fabric: FabricChoice | None,
    ) -> Self:
        """The step of the arguments of `Estimator.predict`; errors as there."""
        bundle = predictor.bundle
        check_format(parallelism.fp8_recipe, bundle)
        if timeline == "simulate":
            check_simulated(parallelism.chunks, parallelism.micro_batches)
        over = collective_source(predictor, fabric)
        used, source = (cluster, "asked") if cluster else _default_cluster(bundle, parallelism, fabric)
        element_bytes = precision_of(bundle.manifest.dtype).element
        parallelism.check(model)
        factors = predictor.factors_for(timeline)
        # On the fullest node, one per device.
        processes = min(parallelism.world_size, used.gpus_per_node)
        times = partial(
            BundleTimes,
            predictor.at(processes),
            factors=factors,
            collectives=None if over is None else Collectives(source=over, gpus_per_node=used.gpus_per_node),
            kernel=kernel_change(parallelism.attention_kernel, bundle, factors),
            power_limit_w=parallelism.power_limit_w,
        )
        engine_of = partial(
            Engine,
            model,
            used,
            bucket_entries,
            element_bytes=element_bytes,
            host_link_bytes_per_s=host_link_bytes_per_s(bundle),
        )
        if parallelism.layer_split == "balanced" and parallelism.layer_counts is None:
            parallelism = engine_of(times()).balanced(Layouts.of(parallelism)).parallelism(0)
        return cls(
            model=model,
            parallelism=parallelism,
            cluster=used,
            cluster_source=source,
            bucket_entries=bucket_entries,
            element_bytes=element_bytes,
            timeline=timeline,
            over=over,
            processes=processes,
            factors=factors,
            times=times,
            engine_of=engine_of,
        )

    def decomposed(self) -> Decomposition:
        """The step taken apart."""
        return decompose(
            **values_of(self, "model", "parallelism", "cluster", "bucket_entries", "element_bytes")
        )

    def configuration(self, engine: Engine, answers: BundleTimes) -> Configurations:
        """The step with its draws, as `engine` makes it of `answers`; DataError where an operator has no answer."""
        found = list(engine.configurations(Layouts.of(self.parallelism)))
        if answers.problems:
            (operator, _), problem = next(iter(answers.problems.items()))
            needed_by = f"model {self.model.name}"
            if OPERATORS[operator].dtype:
                needed_by += f" with fp8_recipe {self.parallelism.fp8_recipe}, but not with fp8_recipe none"
            raise DataError(f"{problem} (needed by {needed_by})")
        [step] = found
        return step

    def exposed_draws(
        self, stack: Stack, engine: Engine, *, step_us: float, draws: int
    ) -> NDArray[np.float64] | float:
        """Random factors of the step, float64 [draws], by the uncertainty of `stack`'s exposed share.

        `step_us` is the predicted step; a second step is predicted with a slightly smaller share.
        """
        spread, layout = stack.exposed_spread, self.parallelism
        if not any(spread) or not layout.exposed_share:
            return 1.0
        less = replace(layout, exposed_share=layout.exposed_share * math.exp(-_LOG_STEP))
        [step] = engine.configurations(Layouts.of(less))
        slope = math.log(step_us / float(step.times(self.timeline).step_us[0])) / _LOG_STEP
        return drawn_factors(tuple(slope * one for one in spread), draws)

    def step_time_s(self) -> float:
        """The predicted time of the step."""
        answers = self.times()
        step = self.configuration(self.engine_of(answers), answers)
        return float(step.times(self.timeline).step_us[0]) / _US_PER_S


def _default_cluster(
    bundle: Bundle, parallelism: Parallelism, fabric: FabricChoice | None
) -> tuple[Cluster, str]:
    of_fabric = chosen_gpus_per_node(fabric)
    if of_fabric is not None:
        return Cluster(gpus_per_node=of_fabric), "fabric"
    gpus_per_node = usual_gpus_per_node(bundle)
    if gpus_per_node is not None:
        return Cluster(gpus_per_node=gpus_per_node), "bundle"
    return Cluster(gpus_per_node=parallelism.world_size), "one node"
