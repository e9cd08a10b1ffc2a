"""The answer to a wish over one hardware: an estimate, how it was come by, and how the network's rate changes it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import ceil, prod
from typing import TYPE_CHECKING, Any

from kernelcast.runtime.answers.collective_times import collective_source
from kernelcast.runtime.answers.fabric_choice import FabricChoice
from kernelcast.runtime.catalogue import shipped_names
from kernelcast.runtime.dataclass import asdict, dataclass, replace
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.estimate.defaults import chosen_gpus_per_node, usual_gpus_per_node
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.estimate.estimator import Estimator
from kernelcast.runtime.frameworks.software import stacks_that_run
from kernelcast.runtime.hardware.fabric import Fabric
from kernelcast.runtime.intent.goals import Wish
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.record import Record
from kernelcast.runtime.request.fields import DEGREES, SAMPLES, STACK
from kernelcast.runtime.request.layout import read_request
from kernelcast.runtime.request.model import ModelConfig

if TYPE_CHECKING:
    from kernelcast.runtime.estimate.fitting_changes import FittingChange
    from kernelcast.runtime.estimate.training import Training
    from kernelcast.runtime.intent.best import Best, OpenRequest
    from kernelcast.runtime.intent.fewest_devices import Fewest
    from kernelcast.runtime.intent.largest import Largest

_HALF, _DOUBLE = 0.5, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSensitivity(Record):
    """Change of a step's time (0.1: 10 % longer) at half and at double the described rate of a device between nodes."""

    fabric: str
    gbit_per_s_per_device: float
    at_half: float
    at_double: float


def rate_sensitivity(
    estimator: Estimator, estimate: Estimate, *, fabric: FabricChoice | None = None
) -> RateSensitivity | None:
    """The estimate's layout at both rates over its `fabric`; None inside a node, or where no description answered."""
    used = estimate.provenance.collectives
    source = collective_source(estimator.predictor, fabric)
    described = None if source is None else source.fabric
    if used is None or used.kind != "described" or described is None or described.between is None:
        return None
    if estimate.parallelism.world_size <= estimate.cluster.gpus_per_node:
        return None
    try:
        half, double = (_scaled(described, factor) for factor in (_HALF, _DOUBLE))
    except DataError:  # a rate that no description may have
        return None
    asked = values_of(estimate, "model", "parallelism", "cluster", "bucket_entries", "timeline")
    at_half, at_double = (
        estimator.step_time_s(**asked, fabric=one) / estimate.step_time_s - 1 for one in (half, double)
    )
    between = described.between
    return RateSensitivity(
        fabric=described.name,
        gbit_per_s_per_device=between.cards * between.bytes_per_s * 8 / 1e9 / described.devices_per_node,
        at_half=at_half,
        at_double=at_double,
    )


def _scaled(fabric: Fabric, factor: float) -> Fabric:
    assert fabric.between is not None
    return replace(fabric, between=replace(fabric.between, gbit_per_s=factor * fabric.between.gbit_per_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentAnswer:
    """An estimate; `best` where its layout was searched, else `changes` that make it fit; and what was wished for, None
    where nothing was. `framework` is the one assumed; without one, `by_framework` are seconds of the step by those
    whose stack ships.
    """

    estimate: Estimate
    sensitivity: RateSensitivity | None = None
    training: Training | None = None
    counts_samples: bool = False
    best: Best | None = None
    fewest: Fewest | None = None
    largest: Largest | None = None
    changes: tuple[FittingChange, ...] = ()
    faster: tuple[FittingChange, ...] | None = None
    framework: str | None = None
    by_framework: Mapping[str, float] | None = None

    @property
    def run_days(self) -> dict[str, float] | None:
        """Quantiles of the days of training by the scatter of steps; None without tokens, or where it is unknown."""
        spread = self.estimate.spread
        if self.training is None or spread is None:
            return None
        return {
            f"p{round(100 * level)}": self.training.days * spread.of_steps(self.training.steps, level)
            for level in (0.5, 0.9, 0.99)
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values: the estimate's form `kernelcast.estimate/2`, with further keys."""
        values = {**self.estimate.to_dict(), **values_of(self, "framework", "by_framework")}
        if self.sensitivity is not None:
            values["fabric_rate_sensitivity"] = self.sensitivity.to_dict()
        if self.training is not None:
            values |= {**self.training.to_dict(), "run_days": self.run_days}
        if self.changes:
            values["fitting_changes"] = list(map(asdict, self.changes))
        if self.faster is not None:
            values["faster_changes"] = list(map(asdict, self.faster))
        if self.best is not None:
            values["runners_up"] = [one.to_dict() for one in self.best.runners_up]
            values["search"] = self.best.counted()
        if self.fewest is not None:
            values["fewest_gpus"] = self.fewest.to_dict()
        if self.largest is not None:
            values["largest"] = self.largest.to_dict()
        return values


def answer(
    estimator: Estimator,
    wish: Wish,
    values: Mapping[str, Any],
    *,
    model: ModelConfig,
    fabric: FabricChoice | None = None,
    price_per_gpu_hour: float | None = None,
) -> IntentAnswer:
    """Answer a wish that was checked with the `values` of its request, by field name. UsageError where a field is
    missing or wrong; DataError where no layout is valid, fits, has an answer, or is fast enough.
    """
    best = fewest = largest = None
    if not wish.is_open:
        estimate = estimator.predict(model=model, fabric=fabric, **read_request(values))
    else:
        best, fewest, largest = _searched(estimator, wish, values, model, fabric)
        estimate = best.estimate
    run = None
    if (data := wish.data(estimate.parallelism.sample_length(estimate.model))) is not None:
        from kernelcast.runtime.estimate.training import training

        run = training(estimate, **data, price_per_gpu_hour=price_per_gpu_hour)
    changes: tuple[FittingChange, ...] = ()
    if best is None and estimate.memory.fits is False:
        from kernelcast.runtime.estimate.fitting_changes import fitting_changes

        changes = fitting_changes(estimator, estimate, fabric=fabric)
    return IntentAnswer(
        estimate=estimate,
        counts_samples=wish.samples is not None,
        sensitivity=rate_sensitivity(estimator, estimate, fabric=fabric),
        training=run,
        best=best,
        fewest=fewest,
        largest=largest,
        changes=changes,
        framework=values.get("framework"),
        by_framework=_by_framework(estimator, values, estimate, fabric),
    )


def _searched(
    estimator: Estimator,
    wish: Wish,
    values: Mapping[str, Any],
    model: ModelConfig,
    fabric: FabricChoice | None,
) -> tuple[Best, Fewest | None, Largest | None]:
    """The best layout, of the fewest devices or the largest values where those are wished for."""
    from kernelcast.runtime.intent.best import find_best, read_open_request

    if wish.days is not None:
        _require_nodes(estimator, values, fabric)
    # What is looked for is not known yet; any number that goes with the given ones will do.
    request = read_open_request(
        {
            "global_batch": prod(values.get(name, 1) for name in SAMPLES),
            "gpus": wish.gpus or prod(values.get(name, 1) for name in DEGREES),
            **values,
        },
        model=model,
        estimator=estimator,
        fabric=fabric,
    )
    data = wish.data(request.question.space.sample_length)
    fewest = largest = None
    if wish.days is not None and data is not None:
        from kernelcast.runtime.intent.fewest_devices import find_fewest

        # Padding takes as long as other tokens.
        fewest = find_fewest(request, tokens=ceil(data["tokens"] / data["useful"]), days=wish.days)
        request = request.with_space(gpus=(fewest.by_median.parallelism.world_size,))
    elif wish.largest is not None:
        largest = _largest(request, wish, values)
        request = largest.request
    return find_best(request), fewest, largest


def _by_framework(
    estimator: Estimator, values: Mapping[str, Any], estimate: Estimate, fabric: FabricChoice | None
) -> dict[str, float] | None:
    """Seconds of a step on hardware that ships as frameworks run it; None where one or a stack is given."""
    asked_for = "framework" in values or estimator.stack is not None or estimate.timeline != "simulate"
    if asked_for or not (hardware := shipped_names(estimator.bundle)):
        return None
    found, asked = {}, values_of(estimate, "model", "cluster", "bucket_entries")
    for name, stack in stacks_that_run(asdict(estimate.parallelism), hardware):
        given = {field: values[field] for field in STACK if field in values}
        layout = replace(estimate.parallelism, **{**stack.fill({}), **given})
        with suppress(UsageError, DataError):
            found[name] = estimator.with_stack(stack).step_time_s(**asked, parallelism=layout, fabric=fabric)
    return found


def _largest(request: OpenRequest, wish: Wish, values: Mapping[str, Any]) -> Largest:
    from kernelcast.runtime.intent.largest import largest_global_batch, largest_sequence_length

    if wish.largest == "sequence-length":
        return largest_sequence_length(request)
    return largest_global_batch(
        request, micro_batches=values.get("micro_batches", 1), micro_batch=values.get("micro_batch")
    )


def _require_nodes(estimator: Estimator, values: Mapping[str, Any], fabric: FabricChoice | None) -> None:
    if (
        "gpus_per_node" not in values
        and chosen_gpus_per_node(fabric) is None
        and usual_gpus_per_node(estimator.bundle) is None
    ):
        fields = ("gpus_per_node", "days")
        raise UsageError("{} is neither given nor in the bundle, which {} needs", fields=fields)
