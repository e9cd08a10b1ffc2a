"""`kernelcast predict --explain OPERATOR`: its answers as text, and the nearest measured samples."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernelcast.cli.tables import table_of, text_table
from kernelcast.runtime import Estimate
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.errors import needs_extra
from kernelcast.runtime.estimate.explanation import Explanation, explain_operator
from kernelcast.runtime.operators import OPERATORS, role_name
from kernelcast.runtime.views.formatting import between, seconds

NEAREST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NearSample:
    """A measured sample near to what was asked; `distance` is that of the logarithms of the workload vectors."""

    vector: tuple[int, ...]
    distance: float
    time_us: float
    hardware: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"vector": list(self.vector)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """An explanation, with samples where a database was given (else None)."""

    explanation: Explanation
    nearest: tuple[NearSample, ...] | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = self.explanation.to_dict()
        if self.nearest is not None:
            values["nearest"] = [sample.to_dict() for sample in self.nearest]
        return values


def explain(
    estimate: Estimate, bundle: Bundle, operator: str, database: Path | None
) -> tuple[Explained, ...]:
    """Explain every distinct question about `operator`, with the nearest samples of `database`.

    Raises:
        UsageError: no such operator, the step does not call it, or the store's packages are not installed.
        DataError: the database cannot be read.
    """
    explanations = explain_operator(estimate, bundle, operator)
    if database is None:
        return tuple(Explained(explanation=one, nearest=None) for one in explanations)
    with needs_extra("--db", "store"):
        from kernelcast.cli.nearest import nearest_samples
    of_bundle = bundle.manifest
    found = nearest_samples(
        database, explanations, dtype=of_bundle.dtype, statistic=of_bundle.statistic, count=NEAREST
    )
    return tuple(
        Explained(explanation=one, nearest=samples) for one, samples in zip(explanations, found, strict=True)
    )


def render_explanations(explained: Sequence[Explained]) -> str:
    """Explanations as readable text, one after the other."""
    return "\n\n".join(_render(one) for one in explained)


def _render(explained: Explained) -> str:
    one = explained.explanation
    entry = one.entry
    beyond = "" if entry.extrapolation_error is None else f", {entry.extrapolation_error:.1%} beyond it"
    coverage = entry.interval_coverage if one.inside else None
    covered = "" if coverage is None else f"; such intervals held {coverage:.0%} of held-out samples"
    lines = [
        f"{_called(one)} ({one.direction})",
        f"  time       {seconds(one.time_us / 1e6)}, "
        f"{between(one.low_us / 1e6, one.high_us / 1e6, like=one.time_us / 1e6)} (90 %){covered}",
        f"  calls      {one.calls:,} per step, {seconds(one.total_s)}, {one.share:.1%} of the devices' work",
        f"  regressor  {entry.algorithm}, form {entry.form}, {entry.rows:,} samples, "
        f"error {entry.validation_error:.1%} in its range{beyond}",
    ]
    if not OPERATORS[entry.operator].is_collective:
        lines.append(f"  load       {entry.load.in_words}")
    if entry.processes_per_node > 1:
        lines.append(f"  measured   with {entry.processes_per_node} processes of a node at it at once")
    if entry.key != (one.operator, one.direction):
        share = "" if one.factor == 1 else f"{one.factor:g} × "
        lines.append(
            f"  substitute {one.operator} ({one.direction}) is not in the bundle; "
            f"the time is {share}that of {entry.operator} ({entry.direction})"
        )
    if one.calibration_factor != 1:
        kind = OPERATORS[one.operator].operator_class
        lines.append(
            f"  calibrated the time contains × {one.calibration_factor:.3f}, for {kind} operators by measured steps"
        )
    if one.kernel is not None:
        kernel = one.kernel.values
        lines.append(
            f"  kernel     the time contains × {kernel['factor']:.3f}, for {kernel['asked']} instead of the measured "
            f"{kernel['measured']}"
        )
    if entry.layouts:
        measured = ", ".join(f"{nodes} × {gpus}" for nodes, gpus in entry.layouts)
        lines.append(f"  layouts    {measured} measured (nodes × devices per node)")
    table = table_of(
        (*one.features, *([one.elements] if one.elements else [])),
        ("feature", lambda feature: feature.name),
        ("unit", lambda feature: feature.unit),
        ("asked", lambda feature: f"{feature.value:,}"),
        ("trained from", lambda feature: f"{feature.minimum:,.0f}"),
        ("to", lambda feature: f"{feature.maximum:,.0f}"),
        ("inside", lambda feature: {True: "yes", False: "NO", None: "-"}[feature.inside]),
        indent="  ",
    )
    lines += ["", table]
    if explained.nearest is not None:
        lines += ["", _nearest(explained.nearest, [feature.name for feature in one.features])]
    return "\n".join(lines)


def _called(one: Explanation) -> str:
    """The operator with its role, and the role's name in the paper's Table I."""
    in_paper = role_name(one.operator, one.role)
    called = " ".join(filter(None, (one.operator, one.role)))
    return called if in_paper.startswith(one.operator) else f"{called}, {in_paper}"


def _nearest(samples: Sequence[NearSample], features: Sequence[str]) -> str:
    if not samples:
        return "  The database has no sample of it."
    rows = [
        [
            *(f"{value:,}" for value in sample.vector),
            f"{sample.distance:.3f}",
            seconds(sample.time_us / 1e6),
            sample.hardware,
        ]
        for sample in samples
    ]
    return "  Nearest samples (distance of the logarithms)\n" + text_table(
        (*features, "distance", "time", "hardware"), rows, indent="  "
    )
