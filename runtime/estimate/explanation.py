"""Explains an operator's time: the questions, the regressors that answered, and how far to trust the answers."""

from typing import Any

from kernelcast.runtime.answers.asking import KERNEL, Question
from kernelcast.runtime.answers.sources import ELEMENTS, exceeded, source_of
from kernelcast.runtime.answers.warnings import AnswerWarning
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError, alternatives, shown_name
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.json_text import plain_values, values_of
from kernelcast.runtime.operators import OPERATORS, Direction, Vector, role_name


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFeature:
    """One entry of a workload vector, and its trained range; `inside`: in the range, within the tolerance of warnings;
    None of an elementwise operator, whose number of elements decides.
    """

    name: str
    unit: str
    value: int
    minimum: float
    maximum: float
    inside: bool | None

    def to_dict(self) -> dict[str, Any]:
        return {
            **values_of(self, "name", "unit", "value"),
            "range": [self.minimum, self.maximum],
            "inside": self.inside,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An operator's workload in a step, and its time.

    `entry` is the regressor that answered, for `features` and, for an elementwise operator, `elements`. If it belongs
    to a substitute, not to `operator`, its time was multiplied by `factor`. The times contain `calibration_factor`, the
    calibration of the operator's class (1 without one), and `kernel`, the ratio to another attention kernel than the
    measured one, if requested. `calls` counts the calls of one step over all stages; `share` is their part in the time
    of all devices' work.
    """

    operator: str
    role: str
    direction: Direction
    vector: tuple[int, ...]
    features: tuple[AskedFeature, ...]
    elements: AskedFeature | None
    entry: RegressorEntry
    factor: float
    calibration_factor: float
    kernel: AnswerWarning | None
    time_us: float
    low_us: float
    high_us: float
    calls: int
    total_s: float
    share: float

    @property
    def inside(self) -> bool:
        """Whether all features lie in the trained range."""
        asked = [*self.features, *([self.elements] if self.elements else [])]
        return all(one.inside is not False for one in asked)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, see docs/json.md."""
        entry = self.entry
        return {
            **plain_values(
                self, "operator", "role", "direction", "vector", "features", "elements", "time_us"
            ),
            "interval_us": [self.low_us, self.high_us],
            "calibration_factor": self.calibration_factor,
            "kernel_factor": 1.0 if self.kernel is None else self.kernel.values["factor"],
            **values_of(self, "calls", "total_s", "share"),
            "regressor": {
                **plain_values(entry, "operator", "direction"),
                "factor": self.factor,
                **plain_values(entry, "algorithm", "form", "rows", "validation_error", "extrapolation_error"),
                **plain_values(entry, "interval_coverage", "layouts", "processes_per_node", "load"),
            },
        }


def explain_operator(estimate: Estimate, bundle: Bundle, name: str) -> tuple[Explanation, ...]:
    """Every distinct question of the step about `name`: an operator, a role (`qkv`), or a role's name in the paper's
    Table I (`Linear1`). UsageError where the step does not call it, or a fabric answered it.
    """
    calls: dict[Question, int] = {}
    everything_us = 0.0
    called: dict[str, None] = {}
    for one, count, time_us in estimate.work():
        (operator, _), _, role = one
        everything_us += count * time_us
        called |= dict.fromkeys(filter(None, (operator, role)))
        if name in (operator, role, role_name(operator, role)):
            calls[one] = calls.get(one, 0) + count
    if not calls:
        known = any(
            name in (row.name, *row.roles, *(role.paper_name for role in row.roles.values()))
            for row in OPERATORS.values()
        )
        if known:
            listed = ", ".join(called)
            raise UsageError(
                f"operator {shown_name(name)} is not part of this step; its operators and roles are {listed}"
            )
        raise UsageError(f"operator {shown_name(name)} is unknown; of this step {alternatives(name, called)}")
    return tuple(_explain(estimate, bundle, one, count, everything_us) for one, count in calls.items())


def _explain(
    estimate: Estimate, bundle: Bundle, asked: Question, calls: int, everything_us: float
) -> Explanation:
    key, vector, role = asked
    entries = bundle.at(estimate.processes_per_node).entries
    source = source_of(key, entries)
    entry = None if source is None else entries[source.answered_by]
    fabric = estimate.provenance.collectives
    if fabric is not None and OPERATORS[key[0]].is_collective:
        of_bundle = fabric.digest == estimate.provenance.bundle_digest
        if entry is None or not of_bundle or (entry.layouts and vector[-2:] not in entry.layouts):
            raise UsageError(
                f"operator {key[0]} was answered by fabric {fabric.name}, expected one that a regressor of the bundle "
                f"answered (kernelcast fabric show {fabric.name})"
            )
    assert source is not None  # it was answered
    assert entry is not None
    source_vector, factor = source.asked(vector, entry)
    features, elements = _asked_features(entry, source_vector)
    time_us, low_us, high_us = estimate.answers[asked]
    return Explanation(
        operator=key[0],
        role=role,
        direction=key[1],
        vector=vector,
        features=features,
        elements=elements,
        entry=entry,
        factor=factor,
        calibration_factor=estimate.provenance.factor_of(key[0]),
        kernel=next(
            (
                one
                for one, questions in estimate.concerned.items()
                if one.kind == KERNEL and asked in questions
            ),
            None,
        ),
        time_us=time_us,
        low_us=low_us,
        high_us=high_us,
        calls=calls,
        total_s=calls * time_us / 1e6,
        share=calls * time_us / everything_us,
    )


def _asked_features(
    entry: RegressorEntry, vector: Vector
) -> tuple[tuple[AskedFeature, ...], AskedFeature | None]:
    """The features of a question with the trained ranges, and its elements where those have a range of their own."""
    operator, by_elements = OPERATORS[entry.operator], entry.elements_range
    outside = {one.feature for one in exceeded(entry, vector)}
    ranges = zip(operator.features.items(), vector, entry.training_range, strict=True)
    features = tuple(
        AskedFeature(
            name=feature,
            unit=unit,
            value=value,
            minimum=low,
            maximum=high,
            inside=feature not in outside if by_elements is None else None,
        )
        for (feature, unit), value, (low, high) in ranges
    )
    if by_elements is None:
        return features, None
    low, high = by_elements
    elements = AskedFeature(
        name=ELEMENTS,
        unit="elements",
        value=round(operator.elements(vector)),
        minimum=low,
        maximum=high,
        inside=ELEMENTS not in outside,
    )
    return features, elements
