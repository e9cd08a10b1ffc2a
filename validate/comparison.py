"""Measured steps and their predictions by the closed form and by the simulated timeline."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelcast.runtime import Estimate, Estimator
from kernelcast.runtime.errors import error_context
from kernelcast.runtime.json_text import plain_values, values_of
from kernelcast.runtime.request.fields import DEGREES
from kernelcast.validate.runs import MeasuredRun

COMPONENTS_OF_STEP = ("Stage_Fwd_Max", "Stage_Bwd_Max", "DP_Allreduce", "Max_Update")
"""What the closed form adds up (eq. 7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedComponent:
    """One component of Table IX: predicted and, where it is known, measured seconds; errors are fractions.

    `implied`: the measured time follows from a published error (authors_regressors.py).
    """

    name: str
    predicted_s: float
    measured_s: float | None
    implied: bool
    published_error: float | None

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1; None without a measured time, or where that is zero."""
        return self.predicted_s / self.measured_s - 1 if self.measured_s else None

    def to_dict(self) -> dict[str, Any]:
        return values_of(self, "name", "predicted_s", "measured_s", "implied", "error", "published_error")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One measured step and its two predictions. `implied_s`: components that published errors imply, in seconds."""

    run: MeasuredRun
    closed_form: Estimate
    simulated: Estimate
    implied_s: Mapping[str, float] | None = None

    @property
    def error(self) -> float:
        return self.closed_form.step_time_s / self.run.measured_s - 1

    @property
    def simulated_error(self) -> float:
        return self.simulated.step_time_s / self.run.measured_s - 1

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured step lies within the closed form's 90 % interval; None without one."""
        return self.closed_form.covers(self.run.measured_s)

    @property
    def implied_step_s(self) -> float | None:
        """The step that the implied components add up to by the closed form: how far they can be trusted."""
        implied, layout = self.implied_s, self.run.parallelism
        if implied is None or not all(name in implied for name in COMPONENTS_OF_STEP):
            return None
        forward_s, backward_s, all_reduce_s, update_s = (implied[name] for name in COMPONENTS_OF_STEP)
        passes = layout.micro_batches - 1 + layout.pp
        return passes * (forward_s + backward_s) + all_reduce_s + update_s

    def components(self) -> tuple[ComparedComponent, ...]:
        """Table IX; times measured by the runs file take precedence over implied ones."""
        measured = self.run.measured_components or {}
        implied = self.implied_s or {}
        published = self.run.published_components or {}
        return tuple(
            ComparedComponent(
                name=name,
                predicted_s=predicted_s,
                measured_s=measured.get(name, implied.get(name)),
                implied=name not in measured and name in implied,
                published_error=published.get(name),
            )
            for name, predicted_s in self.closed_form.components.to_dict().items()
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values; errors are fractions."""
        layout = self.run.parallelism
        return {
            **values_of(self, "run.label", model="run.model.name"),
            **values_of(layout, *DEGREES, "micro_batch", "micro_batches"),
            **values_of(self, "run.measured_s", predicted_s="closed_form.step_time_s"),
            **plain_values(self, "closed_form.interval_s", "is_inside", "error"),
            "simulated_s": self.simulated.step_time_s,
            **values_of(self, "simulated_error", "run.published_error", "implied_step_s"),
            "components": [component.to_dict() for component in self.components()],
            "warnings": [str(warning) for warning in self.closed_form.warnings],
        }


def compare_runs(
    estimator: Estimator,
    runs: Sequence[MeasuredRun],
    implied: Callable[[MeasuredRun, Estimate], Mapping[str, float] | None] = lambda run, estimate: None,
) -> tuple[ComparedRun, ...]:
    """Predict every run both ways; `implied` gives the times of components that published errors imply.

    Errors name the run: UsageError for a timeline that cannot be simulated or devices per node that neither run nor
    bundle gives, DataError for what the bundle lacks.
    """
    compared = []
    for run in runs:
        with error_context(f"run {run.label}"):
            closed = estimator.predict(**run.asked, timeline="closed-form")
            simulated = estimator.predict(**run.asked, timeline="simulate", interval=False)
        implied_s = implied(run, closed)
        compared.append(ComparedRun(run=run, closed_form=closed, simulated=simulated, implied_s=implied_s))
    return tuple(compared)


def mean_absolute(errors: Sequence[float | None]) -> float | None:
    """Mean of absolute values; None for an empty list or where a value is unknown."""
    known = [abs(error) for error in errors if error is not None]
    return sum(known) / len(known) if known and len(known) == len(errors) else None
