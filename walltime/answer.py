"""From a job's settings to its predicted walltime, with its JSON form."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelcast.runtime import Cluster, Estimate, Estimator, Parallelism, UsageError
from kernelcast.runtime.answers.fabric_choice import FabricChoice
from kernelcast.runtime.answers.fabric_choice import find_fabric as fabric_of
from kernelcast.runtime.answers.warnings import Cause
from kernelcast.runtime.catalogue import SCHEME, hardware_named
from kernelcast.runtime.dataclass import asdict, dataclass
from kernelcast.runtime.frameworks.slurm import Allocation
from kernelcast.runtime.frameworks.software import Chosen, choose_software
from kernelcast.runtime.intent.goals import Wish
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.request.fields import DATA
from kernelcast.runtime.request.layout import read_request
from kernelcast.runtime.request.model import FoundModel
from kernelcast.runtime.request.models import built_in_name, built_in_names, find_model, unknown_model
from kernelcast.runtime.views.formatting import seconds
from kernelcast.walltime.arithmetic import Overheads, StepTime, Walltime, device_hours, walltime
from kernelcast.walltime.durations import fits_slurm, format_slurm, format_time
from kernelcast.walltime.fields import DEFAULT_MARGIN, FIELDS, Settings, is_path, merge
from kernelcast.walltime.job import JOB_FILE, SITE_FILE, Job

if TYPE_CHECKING:
    from kernelcast.walltime.script_layout import ScriptLayout

WALLTIME_FORMAT = "kernelcast.walltime/2"
MAX_EXPECTED_S = 3_653 * 86_400.0
"""Ten years: what would take longer, over all of its jobs, is a slip in the steps, the tokens or the layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Resources that a job holds: hours of nodes and GPUs, and their cost if a price is given."""

    time_s: float
    node_hours: float
    gpu_hours: float
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The time limit for the scheduler, and what it follows from. `warnings` are lines for the job's user."""

    walltime: Walltime
    gpus: int
    nodes: int
    price: float | None
    asked_s: float | None
    estimate: Estimate
    settings: Settings
    warnings: tuple[str, ...]

    @property
    def expected(self) -> Held:
        return self._held(self.walltime.expected_s)

    @property
    def requested(self) -> Held:
        """Requested resources, an upper limit: all jobs together."""
        return self._held(self.walltime.requested_s)

    @property
    def slurm(self) -> str | None:
        """The time limit as Slurm reads it; None when it exceeds Slurm's longest."""
        return format_slurm(self.walltime.walltime_s) if fits_slurm(self.walltime.walltime_s) else None

    def _held(self, time_s: float) -> Held:
        gpu_hours = device_hours(time_s, self.gpus)
        return Held(
            time_s=time_s,
            node_hours=device_hours(time_s, self.nodes),
            gpu_hours=gpu_hours,
            cost=None if self.price is None else gpu_hours * self.price,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, form `kernelcast.walltime/2` (docs/json.md)."""
        found = self.walltime
        return {
            "format": WALLTIME_FORMAT,
            "walltime_s": found.walltime_s,
            "slurm": self.slurm,
            **values_of(found, "jobs", "expected_s"),
            "interval_s": [found.low_s, found.high_s],
            **values_of(found, "margin", "needed_s", "max_time_s"),
            "asked_s": self.asked_s,
            **values_of(found, "steps", step_time_s="step.expected_s"),
            "step_interval_s": [found.step.low_s, found.step.high_s],
            **values_of(self, "gpus", "nodes", "price"),
            "expected": asdict(self.expected),
            "requested": asdict(self.requested),
            "settings": {
                name: values_of(given, "value", "origin") for name, given in self.settings.given.items()
            },
            "warnings": list(self.warnings),
            "provenance": self.estimate.provenance.to_dict(),
        }


def answer(
    job: Job,
    *,
    allocation: Allocation | None = None,
    asked_s: float | None = None,
    load: Callable[[str], Estimator] = Estimator.load,
    find_model: Callable[[Settings], FoundModel] | None = None,
    find_fabric: Callable[[Settings], FabricChoice | None] | None = None,
) -> Answer:
    """Predict a job's walltime.

    `allocation` is what the scheduler gives the job, `asked_s` its present time limit (too short gives a warning).
    `load` makes an estimator from a bundle's path; a server passes one that it keeps warm. `find_model` makes the
    model where settings do not name a file or a built-in model, `find_fabric` the fabric.

    Raises:
        UsageError: a setting is missing or fits neither the others nor the allocation; names where it stands.
        DataError: the bundle or the model's file is missing or damaged, or the bundle lacks an operator.
    """
    given = allocation or Allocation()
    settings, read = _with_script(job, find_model or _model)
    described = None if read is None else read.model
    _check_complete(settings, needs_model=described is None)
    with settings.blamed():
        chosen = _software(settings, None if read is None else read.framework)
        asked = read_request(chosen.values)
        layout: Parallelism = asked["parallelism"]
        given.check(layout)
        found_model = described or (find_model or _model)(settings)
        model = found_model.model
        layout.check(model)
        fabric = (find_fabric or _fabric)(settings)
        overheads = _overheads(settings)
        if given.gpus_per_node is not None:
            # The job's allocation takes precedence over a file about nodes in general.
            asked["cluster"] = Cluster(gpus_per_node=given.gpus_per_node)
    bundle = _bundle(settings)
    with settings.blamed():
        estimator = load(bundle) if chosen.stack is None else load(bundle).with_stack(chosen.stack)
        estimate = estimator.predict(model=model, fabric=fabric, **asked)
        found = _walltime(settings, estimate, overheads)
        _check_nodes(given, estimate)
    price = settings.value("price")
    nodes = given.nodes or -(-layout.world_size // estimate.cluster.gpus_per_node)
    return Answer(
        walltime=found,
        gpus=layout.world_size,
        nodes=nodes,
        price=float(price) if isinstance(price, int | float) else None,
        asked_s=asked_s,
        estimate=estimate,
        settings=settings,
        warnings=(
            *job.warnings,
            *(() if read is None else read.notes),
            *chosen.notes,
            *found_model.all_notes,
            *_warnings(found, estimate, asked_s),
        ),
    )


def _with_script(
    job: Job, find_model: Callable[[Settings], FoundModel]
) -> tuple[Settings, ScriptLayout | None]:
    """The job's settings; without a layout, completed from the command that its script starts."""
    settings, script = job.settings, job.script
    if script is None or "micro_batch" in settings:
        return settings, None
    from kernelcast.walltime.script_layout import script_layout

    read = script_layout(script.text, script.name, settings, find_model, job.folder)
    return (settings, None) if read is None else (merge(settings.given, read.given), read)


def _software(settings: Settings, file: str | None) -> Chosen:
    """The software of the settings, or of the script's framework."""
    named = None if "bundle" in settings else settings.text("hardware")
    given = {name: one.value for name, one in settings.given.items()}
    return choose_software(given, hardware=() if named is None else (named,), file=file)


def _walltime(settings: Settings, estimate: Estimate, overheads: Overheads) -> Walltime:
    """The time of all steps."""
    layout = estimate.parallelism
    data = Wish.of_data({name: settings.value(name) for name in DATA})
    steps = data.steps(layout.samples_per_update, layout.sample_length(estimate.model))
    steps = steps or settings.whole("steps") or 1
    found = walltime(
        steps=steps,
        step=_step_time(estimate, steps),
        overheads=overheads,
        margin=settings.number("margin", DEFAULT_MARGIN),
        max_time_s=settings.number("max_time", 0.0) or None,
    )
    _check_sane(found, estimate)
    return found


def _check_sane(found: Walltime, estimate: Estimate) -> None:
    if found.expected_s > MAX_EXPECTED_S:
        raise UsageError(
            f"the job would take {seconds(found.expected_s)} ({found.steps:,} steps of "
            f"{seconds(estimate.step_time_s)} on {estimate.parallelism.world_size:,} GPUs), "
            f"expected at most {seconds(MAX_EXPECTED_S)}"
        )


def _check_nodes(given: Allocation, estimate: Estimate) -> None:
    """Check the job's number of nodes, if the number of GPUs is not known."""
    layout, per_node = estimate.parallelism, estimate.cluster.gpus_per_node
    nodes = -(-layout.world_size // per_node)
    if given.gpus is None and given.nodes not in (None, nodes):
        raise UsageError(
            f"layout {layout.degrees} needs {nodes} node(s), {estimate.per_node_text}, "
            f"expected {given.nodes} as in the job ({given.origin}); gpus_per_node sets the number per node"
        )


def _check_complete(settings: Settings, *, needs_model: bool) -> None:
    for name, *others in (
        ("bundle", "hardware"),
        ("model",),
        ("micro_batch",),
        ("micro_batches", "global_batch"),
        ("steps", "tokens", "samples"),
    ):
        if not any(one in settings for one in (name, *others)) and (needs_model or name != "model"):
            either = f"neither {', '.join((name, *others[:-1]))} nor {others[-1]} is given" if others else ""
            missing = either or f"{name} is not given"
            raise UsageError(f"{missing}, expected {_places(name)}")


def _places(name: str) -> str:
    return (
        f"{FIELDS[name].option}, {name}=… in a #KERNELCAST line of the batch script, "
        f"or {name} in {JOB_FILE} or {SITE_FILE}"
    )


def _model(settings: Settings) -> FoundModel:
    """The model by path, by name in the site's folder, or by built-in name, in this order."""
    name, models = settings.text("model") or "", settings.text("models")
    wanted: str | Path = name
    if models is not None and not is_path(name):
        found = [
            path for path in (Path(models, name + suffix) for suffix in (".toml", ".json")) if path.is_file()
        ]
        wanted = found[0] if found else name
    if wanted == name and not is_path(name) and built_in_name(name) is None:
        # A file or folder that happens to be called so in the current folder is not meant: names name models.
        known = [*built_in_names(), *_names_in(models)]
        raise unknown_model(name, known, "the path of a .toml or .json file works too")
    return find_model(wanted, sequence_length=settings.whole("sequence_length"))


def _bundle(settings: Settings) -> str:
    """The bundle's path, or `hardware:NAME`."""
    hardware = settings.text("hardware")
    return (settings.text("bundle") or "") if hardware is None else SCHEME + hardware_named(hardware).name


def _fabric(settings: Settings) -> FabricChoice | None:
    """The fabric by path or shipped name; None if not given."""
    wanted = settings.text("fabric")
    return None if wanted is None else fabric_of(wanted)


def _names_in(models: str | None) -> list[str]:
    names: list[str] = []
    if models is not None:
        with suppress(OSError):
            names = sorted(entry.stem for entry in map(Path, os.listdir(models)) if is_path(entry.name))
    return names


def _overheads(settings: Settings) -> Overheads:
    startup_s = settings.number("startup", 0.0)
    return Overheads(
        startup_s=startup_s,
        checkpoint_every=settings.whole("checkpoint_every"),
        checkpoint_s=settings.number("checkpoint_cost", 0.0),
        restarts=settings.whole("restarts") or 0,
        restart_s=settings.number("restart_cost", startup_s),
    )


def _step_time(estimate: Estimate, steps: int) -> StepTime:
    """The mean step of a run of `steps`: of its median, 50 and 99 % of the run's time, as steps scatter."""
    step_s, spread = estimate.step_time_s, estimate.spread
    low_s, high_s = estimate.interval_s or (step_s, step_s)
    middle, most = (
        (1.0, 1.0) if spread is None else (spread.of_steps(steps, 0.5), spread.of_steps(steps, 0.99))
    )
    return StepTime(expected_s=step_s * middle, low_s=low_s * middle, high_s=high_s * most)


def _warnings(found: Walltime, estimate: Estimate, asked_s: float | None) -> list[str]:
    lines = []
    if asked_s is not None and asked_s < found.low_s:
        lines.append(
            f"time limit {format_time(asked_s)} is shorter than the predicted minimum of {format_time(found.low_s)}; "
            f"request {format_time(found.walltime_s)}"
        )
    if found.jobs > 1:
        lines.append(
            f"the job needs {format_time(found.needed_s)}, more than the maximum of one job: "
            f"{found.jobs} jobs of {format_time(found.walltime_s)} that continue from checkpoints"
        )
    if estimate.memory.fits is False:
        needed_gib, has_gib = (
            size / 2**30 for size in (estimate.memory.largest_bytes, estimate.memory.usable_bytes or 0)
        )
        lines.append(f"the fullest GPU would need {needed_gib:.1f} GiB and has {has_gib:.1f} GiB")
    calibration = estimate.provenance.calibration
    if calibration is not None and calibration.reason.startswith("fitted for"):
        lines.append(f"the bundle's calibration is not applied: it was {calibration.reason}")
    # What the bundle never holds is no matter of this job.
    doubts = (one for one in estimate.doubts if one.has_influence and one.cause is not Cause.LEFT_OUT)
    return [*lines, *(f"the prediction is less certain, {doubt.line}" for doubt in doubts)]
