"""Predicted and measured steps by configuration, and the noise of the measurements."""

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from kernelcast.collector.training.job import TrainingJob
from kernelcast.collector.training.marks import called
from kernelcast.collector.training.step_trace import LOSS_SUM, TENSOR_SUM
from kernelcast.runtime import Estimate
from kernelcast.runtime.bundle.calibration import CalibrationUse
from kernelcast.runtime.json_text import plain_values, values_of
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.request.fields import DEGREES, EXPERT_DEGREES
from kernelcast.store import MeasuredStep
from kernelcast.validate.run_steps import operator_parts, round_minima_s
from kernelcast.validate.runs import COMPONENT_NAMES

FORMAT = "kernelcast.validation-run/2"
_GAPS = "idle passes"
# A prediction counts the loss's exchanges with the others of their group; a trace lists them separately.
_COUNTED_AS = {LOSS_SUM: TENSOR_SUM}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedOperator:
    """One operator and direction in a step, all stages together.

    `calls` are predicted (0: not part of the prediction); `measured_s` is from the fastest repetition's traced step.
    """

    name: str
    direction: str
    known: bool
    calls: int
    predicted_s: float
    measured_s: float
    share: float

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1; None where one of them is missing."""
        return self.predicted_s / self.measured_s - 1 if self.calls and self.measured_s else None

    def to_dict(self) -> dict[str, Any]:
        per_call = 1e6 / self.calls if self.calls else None
        return {
            "operator": self.name,
            **values_of(self, "direction", "known", "calls", "measured_s", "predicted_s"),
            "measured_us_per_call": self.measured_s * per_call if per_call else None,
            "predicted_us_per_call": self.predicted_s * per_call if per_call else None,
            "error": self.error,
            "share": self.share,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedJob:
    """One configuration: its estimates and a stored step per repetition."""

    job: TrainingJob
    simulated: Estimate
    closed_form: Estimate
    steps: tuple[MeasuredStep, ...]

    @property
    def minimum_s(self) -> float:
        """Fastest step of all repetitions; predictions are compared with it."""
        return min(step.min_s or 0.0 for step in self.steps)

    @property
    def p10_s(self) -> float:
        """The quietest repetition's 10th percentile."""
        return min(step.p10_s or 0.0 for step in self.steps)

    @property
    def median_s(self) -> float:
        """The quietest repetition's median."""
        return min(step.median_s or 0.0 for step in self.steps)

    @property
    def error(self) -> float:
        """The simulated timeline against the fastest step, as a fraction; negative is too short."""
        return self.simulated.step_time_s / self.minimum_s - 1

    @property
    def closed_form_error(self) -> float:
        return self.closed_form.step_time_s / self.minimum_s - 1

    @property
    def inside(self) -> bool | None:
        """Whether the fastest step is inside the simulated timeline's 90 % interval; None without an interval."""
        return self.simulated.covers(self.minimum_s)

    @property
    def noise(self) -> float | None:
        """Spread of the fastest steps over all rounds and repetitions, as a fraction of the fastest.

        None for a single round.
        """
        minima = [time for step in self.steps for time in round_minima_s(step)]
        return max(minima) / min(minima) - 1 if len(minima) > 1 else None

    def components(self) -> list[tuple[str, float, float | None]]:
        """The paper's components and the step: name, predicted seconds, measured seconds of the quietest repetition."""
        predicted = self.simulated.components.to_dict()
        rows: list[tuple[str, float, float | None]] = []
        for name in COMPONENT_NAMES:
            found = [step.components_s[name] for step in self.steps if step.components_s.get(name)]
            if predicted[name] or found:
                rows.append((name, predicted[name], min(found, default=None)))
        return [*rows, ("Overall", self.simulated.step_time_s, self.minimum_s)]

    def operators(self) -> list[ComparedOperator]:
        """Every operator of a traced step or of the prediction, longest first."""
        measured: dict[tuple[str, str, bool], float] = {}
        for step in self.steps:
            own: dict[tuple[str, str, bool], float] = defaultdict(float)
            for part in operator_parts(step):
                own[_COUNTED_AS.get(part.name, part.name), part.direction, part.known] += part.step_s
            for key, step_s in own.items():
                measured[key] = min(step_s, measured.get(key, step_s))
        calls: dict[tuple[str, str, bool], int] = defaultdict(int)
        predicted: dict[tuple[str, str, bool], float] = defaultdict(float)
        for row in self.simulated.operators:
            repeats = self.simulated.repeats(row.component)
            key = (called(row.operator, row.role), row.direction.of_pass, True)
            if row.direction is not Direction.WEIGHT_GRADIENT:  # the other half of a linear's backward pass
                calls[key] += row.count * repeats
            predicted[key] += row.total_s * repeats
        everything_s = sum(measured.values()) or 1.0
        rows = [
            ComparedOperator(
                name=key[0],
                direction=key[1],
                known=key[2],
                calls=calls.get(key, 0),
                predicted_s=predicted.get(key, 0.0),
                measured_s=measured.get(key, 0.0),
                share=measured.get(key, 0.0) / everything_s,
            )
            for key in dict.fromkeys([*measured, *calls])
        ]
        return sorted(rows, key=lambda row: -max(row.measured_s, row.predicted_s))

    @property
    def traced(self) -> tuple[float, float] | None:
        """Seconds of a traced step and of its gaps within passes, for the quietest repetition.

        None with several processes, which wait for each other, and on GPUs.
        """
        if self.job.parallelism.world_size > 1:
            return None
        repetitions = [operator_parts(step) for step in self.steps]
        return min(
            (
                (sum(part.step_s for part in parts), sum(part.step_s for part in parts if part.name == _GAPS))
                for parts in repetitions
                if any(part.name == _GAPS for part in parts)
            ),
            default=None,
        )

    def to_dict(self) -> dict[str, Any]:
        layout, traced = self.job.parallelism, self.traced
        return {
            "model": self.job.model.name,
            **values_of(layout, *DEGREES, *EXPERT_DEGREES, "micro_batch", "micro_batches", "schedule"),
            **values_of(layout, "virtual_stages", "zero", "recompute"),
            "dtype": self.job.dtype,
            **values_of(self, predicted_s="simulated.step_time_s", closed_form_s="closed_form.step_time_s"),
            "measured_s": self.minimum_s,
            **values_of(self, "p10_s", "median_s", "error", "closed_form_error"),
            **plain_values(self, "simulated.interval_s", "inside", "noise"),
            "traced_s": None if traced is None else traced[0],
            "traced_gaps_s": None if traced is None else traced[1],
            "repetitions": [
                {
                    **values_of(step, measured_s="min_s", p10_s="p10_s", median_s="median_s"),
                    "steps": len(step.repetitions_s),
                    "error": self.simulated.step_time_s / (step.min_s or 1.0) - 1,
                    **values_of(step, "reference_us", "measured_at"),
                }
                for step in self.steps
            ],
            "components": [
                dict(zip(("name", "predicted_s", "measured_s"), row, strict=True))
                | {"error": row[1] / row[2] - 1 if row[2] else None}
                for row in self.components()
            ],
            "operators": [one.to_dict() for one in self.operators()],
            "warnings": [str(warning) for warning in self.simulated.warnings],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """All configurations with means. `same_hardware`: the bundle was measured on the hardware that trained."""

    jobs: tuple[ComparedJob, ...]
    hardware: str
    software: str
    same_hardware: bool

    @property
    def mean_abs_error(self) -> float:
        """Mean of the absolute errors against the fastest steps, a fraction."""
        return fmean(abs(one.error) for one in self.jobs)

    @property
    def worst(self) -> ComparedJob:
        return max(self.jobs, key=lambda one: abs(one.error))

    @property
    def inside(self) -> int:
        """Number of configurations whose fastest step is inside the predicted interval."""
        return sum(one.inside is True for one in self.jobs)

    @property
    def noises(self) -> list[float]:
        return [one.noise for one in self.jobs if one.noise is not None]

    @property
    def reference_spread(self) -> float:
        """Spread of the reference product's quiet times, one per configuration and repetition, as a fraction."""
        times = [step.reference_us for one in self.jobs for step in one.steps if step.reference_us]
        return max(times) / min(times) - 1 if times else 0.0

    def of_repetitions(self) -> list[tuple[float, float]]:
        """Mean and largest absolute error of each repetition."""
        found = []
        for steps in zip(*(one.steps for one in self.jobs), strict=True):
            errors = [
                abs(one.simulated.step_time_s / (step.min_s or 1.0) - 1)
                for one, step in zip(self.jobs, steps, strict=True)
            ]
            found.append((fmean(errors), max(errors)))
        return found

    @property
    def calibration(self) -> CalibrationUse | None:
        """How the bundle's calibration entered the simulated timelines; None without one."""
        return self.jobs[0].simulated.provenance.calibration

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, see docs/json.md. Errors are fractions, times seconds."""
        provenance = self.jobs[0].simulated.provenance
        return {
            "format": FORMAT,
            **values_of(self, "hardware", "software", "same_hardware"),
            **values_of(provenance, "kernelcast_version", "bundle", "bundle_digest", "statistic"),
            **plain_values(self, "calibration"),
            "measured_at": max(step.measured_at or "" for one in self.jobs for step in one.steps),
            "mean_abs_error": self.mean_abs_error,
            "worst_error": self.worst.error,
            "closed_form_mean_abs_error": fmean(abs(one.closed_form_error) for one in self.jobs),
            "inside": self.inside,
            "repetitions": [
                {"mean_abs_error": mean, "worst_abs_error": worst} for mean, worst in self.of_repetitions()
            ],
            "noise": {
                "steps": fmean(self.noises) if self.noises else None,
                "largest": max(self.noises, default=None),
                "reference": self.reference_spread,
            },
            "runs": [one.to_dict() for one in self.jobs],
        }
