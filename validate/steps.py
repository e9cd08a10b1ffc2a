"""Scores predictions of what ships, or of another bundle, against every measured step of runs files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from statistics import mean, median
from types import MappingProxyType
from typing import Any

from kernelcast.runtime import Estimate, Estimator, KernelcastError, UsageError
from kernelcast.runtime.answers.fabric_choice import FabricChoice, find_fabric
from kernelcast.runtime.catalogue import SCHEME
from kernelcast.runtime.errors import error_context, shown_path
from kernelcast.runtime.json_text import plain_values, values_of
from kernelcast.runtime.request.fields import TimelineKind
from kernelcast.runtime.stack import Stack
from kernelcast.validate.comparison import mean_absolute
from kernelcast.validate.runs import MeasuredRun, RunsFile

FORMAT = "kernelcast.steps/1"
SHIPPED = (
    "perlmutter", "vista", "llm-foundry-a100-40gb", "llm-foundry-a100-80gb", "simumax-b200",
    "simumax-b200-experts", "simumax-b200-context",
)  # fmt: skip
"""Runs files in this folder; each names its device and its fabric."""
_BYTES_PER_GIB = 1 << 30
_FOLDER = Path(str(files("kernelcast.validate")))
_DEVICES = {
    "megatron-bridge": "h100 b200 b300 gb200 gb300",
    "torchtitan": "h100 h200",
    "mlperf": "h100 h200 h200-nvl b200 b300 gb200 gb300 mi300x mi325x mi350x mi355x l40s",
}
TODAY = tuple(f"{source}-{device}" for source, devices in _DEVICES.items() for device in devices.split())
"""Runs files of steps of 2024 to 2026, which are scored where they are named."""
_AS_STATED: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredStep:
    """A measured step and its prediction; `reason` is set without a prediction. Errors are predicted / measured - 1."""

    run: MeasuredRun
    estimate: Estimate | None
    reason: str = ""

    @property
    def error(self) -> float | None:
        return None if self.estimate is None else self.estimate.step_time_s / self.run.measured_s - 1

    @property
    def is_inside(self) -> bool | None:
        return None if self.estimate is None else self.estimate.covers(self.run.measured_s)

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width, as a fraction of the predicted step."""
        if self.estimate is None or self.estimate.interval_s is None:
            return None
        low_s, high_s = self.estimate.interval_s
        return (high_s - low_s) / 2 / self.estimate.step_time_s

    @property
    def predicted_memory_gib(self) -> tuple[float, ...] | None:
        """Memory of the fullest device, or of every stage's fullest device where each was measured."""
        if self.estimate is None:
            return None
        memory = self.estimate.memory
        by_stage = len(self.run.memory_gib or ()) > 1
        sizes = [stage.total_bytes for stage in memory.stages] if by_stage else [memory.largest_bytes]
        return tuple(size_bytes / _BYTES_PER_GIB for size_bytes in sizes)

    @property
    def memory_errors(self) -> tuple[float, ...]:
        """Errors of the predicted memory; empty if no memory was measured."""
        predicted, measured = self.predicted_memory_gib, self.run.memory_gib
        if predicted is None or measured is None:
            return ()
        return tuple(one / other - 1 for one, other in zip(predicted, measured, strict=True))

    @property
    def margin_gib(self) -> float | None:
        """What the fullest device is predicted to have left; None where its memory is not known."""
        if self.estimate is None or self.estimate.memory.margin_bytes is None:
            return None
        return self.estimate.memory.margin_bytes / _BYTES_PER_GIB

    @property
    def fits(self) -> bool | None:
        return None if self.estimate is None else self.estimate.memory.fits

    def to_dict(self) -> dict[str, Any]:
        run, predicted = self.run, self.estimate and self.estimate.memory.largest_bytes / _BYTES_PER_GIB
        return {
            **values_of(run, "label", model="model.name", sequence_length="model.sequence_length"),
            **asdict(run.parallelism),
            **values_of(self, "run.measured_s", predicted_s="estimate.step_time_s"),
            **plain_values(self, "estimate.interval_s"),
            **values_of(self, "error", "is_inside"),
            **values_of(run, "kind", "flag", "is_steady", "published_error"),
            "measured_memory_gib": None if run.memory_gib is None else max(run.memory_gib),
            "predicted_memory_gib": predicted,
            **plain_values(self, "memory_errors", "fits", "margin_gib", "reason"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Figures of several steps, over those that were predicted; None where there is nothing to take them from.

    `inside` counts steps in their interval, `too_large` those that ran though they are predicted not to fit, and
    `least_margin_gib` is what the fullest device of all has left. Errors of memory cover every stage that was
    measured.
    """

    model: str
    steps: int
    predicted: int
    mean_error: float | None
    mean_abs_error: float | None
    inside: int
    median_half_width: float | None
    mean_memory_error: float | None
    mean_abs_memory_error: float | None
    largest_memory_error: float | None
    too_large: int
    least_margin_gib: float | None
    mean_abs_published_error: float | None

    @classmethod
    def of(cls, model: str, steps: Sequence[ScoredStep]) -> "Score":
        errors = _known([step.error for step in steps])
        widths = _known([step.half_width for step in steps])
        memory = [error for step in steps for error in step.memory_errors]
        margins = _known([step.margin_gib for step in steps])
        published = _known([step.run.published_error for step in steps])
        return cls(
            model=model,
            steps=len(steps),
            predicted=len(errors),
            mean_error=mean(errors) if errors else None,
            mean_abs_error=mean_absolute(errors),
            inside=sum(step.is_inside is True for step in steps),
            median_half_width=median(widths) if widths else None,
            mean_memory_error=mean(memory) if memory else None,
            mean_abs_memory_error=mean_absolute(memory),
            largest_memory_error=max(memory, key=abs, default=None),
            too_large=sum(step.fits is False for step in steps),
            least_margin_gib=min(margins, default=None),
            mean_abs_published_error=mean_absolute(published),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredFile:
    """The steps of one runs file. `asked` is the hardware or bundle that predicted them, `fabric` its fabric,
    `stack` what corrected the answers.
    """

    path: Path
    file: RunsFile
    asked: str
    bundle_digest: str
    fabric: str
    steps: tuple[ScoredStep, ...]
    stack: Stack | None = None
    timeline: TimelineKind = "simulate"

    @property
    def is_fitted(self) -> bool:
        """Whether the stack was fitted to this file's steps: then its errors say nothing about other steps."""
        return self.stack is not None and self.file.digest in {one.digest for one in self.stack.runs}

    @property
    def scores(self) -> tuple[Score, ...]:
        """Of every model, in the file's order, then of all steps as model "all" where there are several models."""
        scored = [step for step in self.steps if not step.run.flag]
        groups: dict[str, list[ScoredStep]] = {}
        by_kind = self.path.stem in TODAY
        for step in scored:
            name = f"{step.run.model.name}, {step.run.kind}" if by_kind else step.run.model.name
            groups.setdefault(name, []).append(step)
        found = [Score.of(name, steps) for name, steps in groups.items()]
        return (*found, Score.of("all", scored)) if len(groups) > 1 else tuple(found)

    def to_dict(self) -> dict[str, Any]:
        return {
            "runs_file": self.path.name,
            "runs_digest": self.file.digest,
            "is_shipped": self.path.parent == _FOLDER,
            **values_of(self.file, "site", "hardware", "stack", "source", "licence"),
            **values_of(self, "asked", "bundle_digest", "fabric", "timeline", applied_stack="stack.name"),
            **plain_values(self, "is_fitted", "file.left_out", "scores", "steps"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFile:
    """A runs file, and the estimator of its steps, called `asked`, over a fabric."""

    path: Path
    file: RunsFile
    asked: str
    estimator: Estimator
    fabric: FabricChoice | None
    fabric_name: str

    def score(
        self,
        stack: Stack | None = None,
        runs: Sequence[MeasuredRun] | None = None,
        *,
        timeline: TimelineKind = "simulate",
        changed: Mapping[str, Any] = _AS_STATED,
        interval: bool = True,
    ) -> list[ScoredStep]:
        """Predict all steps, or `runs`; intervals leave out steps of the same model by the same publisher."""
        chosen = self.file.runs if runs is None else runs
        asked = {}
        for name in dict.fromkeys(run.model.name for run in chosen):
            estimator = self.estimator.leaving_out(self.file.publisher, name)
            asked[name] = estimator if stack is None else estimator.with_stack(stack)
        return [_step(asked[run.model.name], run, self.fabric, timeline, changed, interval) for run in chosen]


def score_steps(
    paths: Sequence[Path] = (),
    *,
    bundle: str = "",
    fabric: str = "",
    stack: Stack | None = None,
    timeline: TimelineKind = "simulate",
    changed: Mapping[str, Any] = _AS_STATED,
) -> tuple[ScoredFile, ...]:
    """Predict every step of the runs files, without any those that ship; steps that cannot be predicted have a reason.

    `bundle` (a file, or `hardware:NAME`) and `fabric` (as `find_fabric` takes it) answer instead of the device and the
    fabric that a file names. A file that names no fabric is answered over the bundle's own. `stack` corrects the
    answers; its exposed share holds for all steps. `changed` fields override what the files state.
    In the intervals, steps of a file's publisher of the same model have no part.

    Raises:
        UsageError: a file names no device and `bundle` is not given; the device or the fabric is unknown; as
            `RunsFile.read`.
        DataError: a file is missing or damaged.
    """
    return tuple(
        ScoredFile(
            **values_of(
                one, "path", "file", "asked", bundle_digest="estimator.bundle.digest", fabric="fabric_name"
            ),
            steps=tuple(one.score(stack, timeline=timeline, changed=changed)),
            stack=stack,
            timeline=timeline,
        )
        for one in asked_files(paths or shipped_runs(), bundle=bundle, fabric=fabric)
    )


def asked_files(paths: Sequence[Path], *, bundle: str = "", fabric: str = "") -> list[AskedFile]:
    """The estimators of the steps of runs files; errors as in `score_steps`."""
    read = [(path, RunsFile.read(path)) for path in paths]
    known = find_fabric(fabric) if fabric else None
    estimators = {bundle: Estimator.load(bundle)} if bundle else {}
    found = []
    for path, file in read:
        with error_context(f"runs file {shown_path(path)}"):
            if not bundle and not file.device:
                raise UsageError("device is missing, expected a device's name, or --hardware or --bundle")
            asked = bundle or f"{SCHEME}{file.device}"
            if asked not in estimators:
                estimators[asked] = Estimator.load(asked)
            own = find_fabric(file.fabric) if known is None and file.fabric else known
        found.append(
            AskedFile(
                path=path,
                file=file,
                asked=asked.removeprefix(SCHEME),
                estimator=estimators[asked],
                fabric=own,
                fabric_name=fabric or file.fabric,
            )
        )
    return found


def shipped_runs(device: str = "", *, names: Iterable[str] = SHIPPED) -> tuple[Path, ...]:
    """The runs files that ship, or the files of one device."""
    paths = tuple(_FOLDER / f"{name}.toml" for name in names)
    return tuple(path for path in paths if device in ("", RunsFile.read(path).device))


def _step(
    estimator: Estimator,
    run: MeasuredRun,
    fabric: FabricChoice | None,
    timeline: TimelineKind,
    changed: Mapping[str, Any],
    interval: bool,
) -> ScoredStep:
    of_stack = {} if estimator.stack is None else {"exposed_share": estimator.stack.exposed_share}
    try:
        asked = run.asked | {"parallelism": replace(run.parallelism, **{**of_stack, **changed})}
        estimate = estimator.predict(**asked, timeline=timeline, fabric=fabric, interval=interval)
    except KernelcastError as error:
        return ScoredStep(run=run, estimate=None, reason=str(error))
    return ScoredStep(run=run, estimate=estimate)


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]
