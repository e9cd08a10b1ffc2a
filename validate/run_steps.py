"""Measured steps of `validate run` in a database: written once measured, and read by later runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from kernelcast.collector.machine.probe import Fingerprints
from kernelcast.collector.training.job import TrainingJob
from kernelcast.collector.training.job_result import JobResult
from kernelcast.runtime import Estimate, Parallelism
from kernelcast.runtime.json_text import values_of
from kernelcast.store import Database, MeasuredStep, Prediction, Run, Status, utc_now
from kernelcast.store.canonical import plain_mapping

COMMAND = "validate run"
_OPERATOR, _KERNEL = "operator", "kernel"
_UNFINISHED = "unfinished"
_OF_LAYOUT = ("pp", "tp", "dp", "micro_batch", "micro_batches")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPart:
    """Seconds of a traced step in an operator and direction, or (not `known`) in a kernel of that name."""

    name: str
    direction: str
    known: bool
    step_s: float


def step_of(
    run: Run, measured: JobResult, repetition: int, reference_us: float | None, *, finished: bool
) -> MeasuredStep:
    """One repetition of a job as a row: components by the paper's names, then the seconds of every operator."""
    conditions: dict[str, Any] = {"repetition": repetition, "rounds": len(measured.turns)}
    if not finished:
        conditions[_UNFINISHED] = True
    layout = measured.job.parallelism
    parts = {
        f"{_OPERATOR if one.known else _KERNEL} {one.operator} {one.direction}": one.step_us / 1e6
        for one in measured.operator_times()
        if one.step_us > 0
    }
    return MeasuredStep.from_repetitions(
        run_id=run.id,
        repetitions_s=measured.steps_s,
        model=asdict(measured.job.model),
        **layout_columns(layout),
        dtype=measured.job.dtype,
        framework="torch.distributed",
        options=_options(measured.job) | conditions,
        components_s=measured.components_s() | parts,
        reference_us=reference_us,
        measured_at=utc_now(),
    )


def layout_columns(layout: Parallelism) -> dict[str, Any]:
    """The columns of a stored step that a layout fills."""
    return {
        **values_of(layout, *_OF_LAYOUT),
        "schedule": "1F1B" if layout.schedule == "1f1b" else layout.schedule,
        "recomputation": layout.recompute != "none",
    }


_FURTHER = ("cp", "ep", "expert_imbalance")


def _options(job: TrainingJob) -> dict[str, Any]:
    layout = job.parallelism
    # Steps stored by older versions lack these fields.
    further = {name: getattr(layout, name) for name in _FURTHER if getattr(layout, name) != 1}
    if layout.cp > 1:
        further["context_exchange"] = layout.context_exchange
    return further | {
        **values_of(layout, "recompute", "virtual_stages", "zero"),
        "layer_counts": list(job.chunk_layers),
        "bucket_entries": job.bucket_entries,
        "gpus_per_node": layout.world_size,
    }


def known_steps(
    database: Database,
    keys_of: Callable[[int], Fingerprints],
    jobs: Sequence[TrainingJob],
    *,
    least_steps: int,
) -> Mapping[tuple[TrainingJob, int], MeasuredStep]:
    """Steps of this hardware and software in the database by job and repetition, the newest of each.

    `keys_of` gives the fingerprints for a number of processes on this node. Repetitions that were cut short or have
    fewer than `least_steps` steps do not count; rounds, warm-up steps and seed may differ.
    """
    here = {processes: keys_of(processes) for processes in {job.parallelism.world_size for job in jobs}}
    run_keys = {
        run.id: (run.compute_id, run.software_id) for run in database.run_list() if run.command == COMMAND
    }
    wanted = {job: _identity(asdict(job.model), job.dtype, _layout(job), _options(job)) for job in jobs}
    found: dict[tuple[TrainingJob, int], MeasuredStep] = {}
    for step in sorted(database.records(MeasuredStep), key=lambda one: one.measured_at or ""):
        options = dict(step.options)
        if step.status is not Status.OK or len(step.repetitions_s) < least_steps or _UNFINISHED in options:
            continue
        repetition = options.pop("repetition", 0)
        options.pop("rounds", None)
        layout = [*(getattr(step, name) for name in _OF_LAYOUT), step.schedule.lower()]
        identity = _identity(step.model, step.dtype, layout, options)
        for job, one in wanted.items():
            keys = here[job.parallelism.world_size]
            if one == identity and run_keys.get(step.run_id) == (keys.compute.digest, keys.software.digest):
                found[job, repetition] = step
    return found


def _layout(job: TrainingJob) -> list[Any]:
    return [getattr(job.parallelism, name) for name in (*_OF_LAYOUT, "schedule")]


def _identity(
    model: Mapping[str, Any], dtype: str, layout: list[Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    return plain_mapping(
        {"model": dict(model), "dtype": dtype, "layout": layout, "options": dict(options)}, "step"
    )


def store_predictions(database: Database, step: MeasuredStep, estimates: Iterable[Estimate]) -> None:
    for estimate in estimates:
        low_s, high_s = estimate.interval_s or (None, None)
        database.add(
            Prediction(
                step_id=step.id,
                bundle_digest=estimate.provenance.bundle_digest,
                timeline="schedule" if estimate.timeline == "simulate" else "closed form",
                statistic="quiet_us" if estimate.provenance.statistic.startswith("quiet") else "time_us",
                predicted_s=estimate.step_time_s,
                low_s=low_s,
                high_s=high_s,
                components_s=estimate.components.to_dict(),
                kernelcast_version=version("kernelcast"),
            )
        )


def operator_parts(step: MeasuredStep) -> list[OperatorPart]:
    found = []
    for name, seconds in step.components_s.items():
        kind, _, rest = name.partition(" ")
        if kind in (_OPERATOR, _KERNEL) and rest:
            operator, _, direction = rest.rpartition(" ")
            found.append(
                OperatorPart(name=operator, direction=direction, known=kind == _OPERATOR, step_s=seconds)
            )
    return sorted(found, key=lambda part: -part.step_s)


def round_minima_s(step: MeasuredStep) -> list[float]:
    """The fastest step of every round of a stored repetition."""
    rounds = max(1, int(step.options.get("rounds", 1)))
    each = -(-len(step.repetitions_s) // rounds)
    return [
        min(step.repetitions_s[start : start + each]) for start in range(0, len(step.repetitions_s), each)
    ]
