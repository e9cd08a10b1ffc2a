"""A measured step and its prediction: whether it is slow, and, of traces, where and why."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from kernelcast.collector.ingest.open_traces import opened_traces
from kernelcast.runtime import Estimate
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.estimate.predicted_range import PredictedRange
from kernelcast.runtime.json_text import plain_values, values_of
from kernelcast.runtime.views.formatting import seconds
from kernelcast.store import Database
from kernelcast.store.trace_report import traced_runs
from kernelcast.validate.compare.causes import Cause, find_causes
from kernelcast.validate.compare.logs import LoggedSteps, logged_steps
from kernelcast.validate.compare.published_steps import PublishedSteps
from kernelcast.validate.compare.rows import (
    PRODUCTS,
    Row,
    collective_rows,
    is_near_rows,
    operator_rows,
    part_rows,
    predicted_step,
)
from kernelcast.validate.compare.traced_steps import TracedSteps, traced_steps

FORMAT = "kernelcast.compared_step/1"
_LEAST_MATCHED = 0.5  # of the predicted matrix products
_OF_IMAGES = ("conv", "batch_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStep:
    """A step of a real run and what was predicted for it. Seconds; `measured_s` is the median of the run's steps.

    `traced` and the rows come only from traces, `logged` only from a log. `published` are similar steps of
    others, on the device that the caller names.
    """

    estimate: Estimate
    steps_s: tuple[float, ...]
    measured_s: float
    traced: TracedSteps | None = None
    logged: LoggedSteps | None = None
    parts: tuple[Row, ...] = ()
    operators: tuple[Row, ...] = ()
    collectives: tuple[Row, ...] = ()
    causes: tuple[Cause, ...] = ()
    notes: tuple[str, ...] = ()
    published: tuple[PublishedSteps, ...] = ()

    @property
    def slower_than(self) -> float | None:
        """Share of the predicted distribution that is shorter; None without an interval."""
        estimate = self.estimate
        if estimate.interval_s is None:
            return None
        predicted = PredictedRange(median=estimate.step_time_s, interval=estimate.interval_s)
        return predicted.share_below(self.measured_s)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """What the measured step amounts to, in the unit of published speeds."""
        layout, model = self.estimate.parallelism, self.estimate.model
        return layout.samples_per_update * layout.sample_length(model) / self.measured_s / layout.world_size

    @property
    def difference(self) -> float:
        """Measured / predicted - 1; above 0 the run is slower than predicted."""
        return self.measured_s / self.estimate.step_time_s - 1

    @property
    def verdict(self) -> str:
        """`slow`, `fast`, or `as predicted`: above, below or inside the prediction's 90 % interval."""
        low_s, high_s = self.estimate.interval_s or (self.estimate.step_time_s, self.estimate.step_time_s)
        return "slow" if self.measured_s > high_s else "fast" if self.measured_s < low_s else "as predicted"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, form `kernelcast.compared_step/1` (docs/json.md). Times in seconds."""
        return {
            "format": FORMAT,
            **values_of(self, "verdict", "measured_s", predicted_s="estimate.step_time_s"),
            **plain_values(self, "estimate.interval_s", "difference", "slower_than", "tokens_per_s_per_gpu"),
            **plain_values(self, "steps_s", "traced.run_id"),
            "ranks": [] if self.traced is None else list(self.traced.ranks),
            **plain_values(self, "logged.framework", "causes"),
            "parts": [
                {"part": one.name, **values_of(one, "measured_s", "predicted_s")} for one in self.parts
            ],
            "operators": [_operator_values(one) for one in self.operators],
            "collectives": [
                _operator_values(one) | values_of(one, "measured_bytes", "predicted_bytes")
                for one in self.collectives
            ],
            **plain_values(self, "published", "notes"),
        }


def compare_traces(paths: Sequence[Path], estimate: Estimate, *, run_id: str = "") -> ComparedStep:
    """Compare the traces of one run (files, a folder of ranks, or a database) with an estimate.

    UsageError where they are several runs and `run_id` begins none or several; DataError for a file that is no trace.
    """
    gpus_per_node = min(estimate.cluster.gpus_per_node, estimate.parallelism.world_size)
    notes: list[str] = []
    with opened_traces(paths, gpus_per_node=gpus_per_node, notes=notes) as database:
        runs = traced_runs(database, run_id)
        if len(runs) > 1:
            listed = ", ".join(run[:12] for run in runs)
            raise UsageError(f"--run: found {len(runs)} runs ({listed}), expected the start of one's id")
        compared = compare_run(database, runs[0], estimate)
    return replace(compared, notes=(*notes, *compared.notes))


def compare_run(database: Database, run_id: str, estimate: Estimate) -> ComparedStep:
    """Compare a run that the database has traces of with an estimate; DataError for traces of another step."""
    traced = traced_steps(database, run_id)
    predicted = predicted_step(estimate, traced.ranks)
    operators = operator_rows(traced, predicted, estimate)
    if unlike := list(_unlike(traced, estimate, operators)):
        raise DataError(
            f"run {run_id[:12]}: {'; '.join(unlike)}; expected traces of a training step of {estimate.model.name} on "
            f"{estimate.parallelism.world_size:,} GPUs"
        )
    collectives = collective_rows(traced, predicted, estimate)
    return ComparedStep(
        estimate=estimate,
        steps_s=tuple(traced.step_s(step) for step in traced.steps),
        measured_s=traced.step_s(traced.typical),
        traced=traced,
        parts=part_rows(traced, predicted),
        operators=operators,
        collectives=collectives,
        causes=find_causes(traced, estimate, operators, collectives),
        notes=tuple(_notes(traced, estimate, operators)),
    )


def compare_log(path: Path, estimate: Estimate) -> ComparedStep:
    """Compare the step times that a training log tells with an estimate; DataError where it tells none."""
    layout = estimate.parallelism
    logged = logged_steps(
        path,
        samples=layout.samples_per_update,
        tokens=layout.samples_per_update * layout.sample_length(estimate.model),
        devices=layout.world_size,
    )
    return ComparedStep(estimate=estimate, steps_s=logged.steps_s, measured_s=logged.median_s, logged=logged)


def compare_stated(
    estimate: Estimate,
    *,
    step_s: float | None = None,
    tokens_per_s_per_gpu: float | None = None,
    mfu: float | None = None,
) -> ComparedStep:
    """Compare a speed that a user states, one of three, with an estimate.

    UsageError for a speed above the devices' peak, or where the peak that an MFU refers to is not known.
    """
    layout = estimate.parallelism
    if tokens_per_s_per_gpu:
        tokens = layout.samples_per_update * layout.sample_length(estimate.model)
        step_s = tokens / layout.world_size / tokens_per_s_per_gpu
    elif mfu:
        if estimate.mfu is None:
            raise UsageError("the device's peak is not known, expected the step's time or tokens per second")
        step_s = estimate.step_time_s * estimate.mfu / mfu
    if step_s is None or not 0 < step_s < inf:
        raise UsageError("found no finite step time above 0, expected a time, speed or utilization above 0")
    if estimate.mfu is not None and (reached := estimate.mfu * estimate.step_time_s / step_s) > 1:
        raise UsageError(
            f"the step would take {seconds(step_s)}, {reached:.0%} of the devices' peak; "
            "expected the tokens per second of one GPU, or the time of a whole step"
        )
    return ComparedStep(estimate=estimate, steps_s=(step_s,), measured_s=step_s)


def _unlike(traced: TracedSteps, estimate: Estimate, operators: Sequence[Row]) -> Iterator[str]:
    """Why the traces cannot be of the predicted step: another layout, no training step, another model."""
    world_size = estimate.parallelism.world_size
    if traced.world_size is not None and traced.world_size != world_size:
        yield f"found traces of {traced.world_size:,} processes, the layout has {world_size:,}"
    compute = [work for work in traced.work if work.step == traced.typical and work.class_ == "compute"]
    if not compute:
        yield "found no kernel that computes"
    passes = {work.pass_ for work in compute}
    if "forward" in passes and "backward" not in passes:
        yield "found no backward pass, as in inference"
        operators = [row for row in operators if row.pass_ != "backward"]
    # Other models are recognised by shapes, and without shapes by operators that language models do not have.
    shapes = any(work.operator in PRODUCTS and work.vector for work in traced.work)
    matched, other_rows = _matched_products(operators), _other_rows(traced, operators)
    if shapes and (matched < _LEAST_MATCHED or other_rows):
        yield f"found {matched:.0%} of the predicted matrix products, by their shapes{other_rows}"
    images_s = sum(work.time_s for work in compute if any(one in work.host_operator for one in _OF_IMAGES))
    if 2 * images_s > (all_s := sum(work.time_s for work in compute)):
        yield f"found convolutions and batch norms in {images_s / all_s:.0%} of the compute, as in models of images"


def _other_rows(traced: TracedSteps, operators: Sequence[Row]) -> str:
    """Where most products of the predicted widths have another number of tokens: which."""
    # How many tokens choose an expert is not predicted one by one.
    experts = {row.vector[2:] for row in operators if row.operator == "grouped_gemm"}
    predicted = [row for row in operators if row.operator == "gemm" and row.predicted_s]
    predicted = [row for row in predicted if row.vector[1:] not in experts]
    wanted = {row.vector[1:]: row.vector[0] for row in predicted}
    exact = {row.vector for row in predicted}
    found: dict[tuple[int, int], float] = defaultdict(float)
    for work in traced.work:
        if work.step == traced.typical and work.operator == "gemm" and work.vector[1:] in wanted:
            rows = work.vector[0]
            found[rows, rows if work.vector in exact else wanted[work.vector[1:]]] += work.time_s
    ran, tokens = max(found, key=lambda rows: found[rows], default=(0, 0))
    if is_near_rows(ran, tokens):
        return ""
    return f" (they have {ran:,} tokens instead of {tokens:,}: another micro-batch or sequence length)"


def _matched_products(operators: Sequence[Row]) -> float:
    """Share of the predicted products' time that the traces show; 1 if none is predicted."""
    products = [one for one in operators if one.operator in PRODUCTS and one.predicted_s]
    of_all = sum(one.predicted_s or 0.0 for one in products)
    return sum(one.predicted_s or 0.0 for one in products if one.is_matched) / of_all if products else 1.0


def _notes(traced: TracedSteps, estimate: Estimate, operators: Sequence[Row]) -> list[str]:
    """What trace and prediction disagree about, or is worth knowing."""
    found = []
    world_size = estimate.parallelism.world_size
    matched = _matched_products(operators)
    if matched < _LEAST_MATCHED:
        found.append(
            f"the traces show {matched:.0%} of the predicted matrix products: without shapes "
            "(record_shapes=True) it is not known whether they are of this model"
        )
    measured_on = {one.split(",")[0] for one in estimate.provenance.compute}
    device = traced.hardware.split(",")[0]
    if measured_on and device not in measured_on and not device.startswith("unknown"):
        found.append(f"the traces are of {device}, the prediction is for {', '.join(sorted(measured_on))}")
    if len(traced.ranks) < world_size:
        found.append(
            f"{len(traced.ranks)} of {world_size} ranks are traced: a slow one among the others shows as waiting only"
        )
    return found


def _operator_values(row: Row) -> dict[str, Any]:
    return {
        "operator": row.operator or None,
        **plain_values(row, "name", "vector", **{"pass": "pass_"}),
        **values_of(row, "measured_s", "predicted_s", "low_s", "high_s", "ratio", "excess_s", "is_slow"),
        **values_of(row, "launches", "calls"),
    }
