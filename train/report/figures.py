"""The figures of a training, per operator and direction and on average: for the terminal, the page and JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from kernelcast.runtime.bundle.regressor_entry import KINDS, HeldOut, RegressorEntry
from kernelcast.runtime.json_text import plain_values, values_of
from kernelcast.runtime.operators import OPERATORS, role_name
from kernelcast.runtime.views.formatting import value_range, value_ranges
from kernelcast.train.fit import Trained
from kernelcast.train.prior import correcting_points
from kernelcast.train.report.reference import Reference
from kernelcast.train.selection import Selected, relative_errors

FORMAT = "kernelcast.training/2"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFigures:
    """One layout of a collective in a role. Errors are fractions: mean and median of the absolute relative error, held
    out.
    """

    role: str
    nodes: int
    gpus_per_node: int
    rows: int
    error: float
    median_error: float
    reference_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFigures:
    """A regressor in one of the roles that its rows were measured in; `name` is the paper's (Table I).

    `rows` is None for a regressor of an earlier bundle; for a corrected prior they are the points of the correction.
    `reference_error` is the error that others published for it.
    """

    role: str
    name: str
    rows: int | None
    error: float
    reference_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A measured row far from its held-out prediction: workload and both times."""

    vector: tuple[int, ...]
    time_us: float
    held_out_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFigures:
    """One regressor. `selected` holds the rows; None if it was taken over from an earlier bundle unchanged."""

    entry: RegressorEntry
    selected: Selected | None
    roles: tuple[RoleFigures, ...]
    layouts: tuple[LayoutFigures, ...]
    outliers: tuple[Outlier, ...]

    @property
    def name(self) -> str:
        """Operator and direction, unique in a training."""
        return f"{self.entry.operator}, {self.entry.direction_text}"

    @property
    def title(self) -> str:
        return OPERATORS[self.entry.operator].title

    @property
    def anchor(self) -> str:
        return self.entry.file.removeprefix("models/").removesuffix(".onnx")

    @property
    def ranges(self) -> str:
        """The training range of every feature in words."""
        pairs = zip(self.entry.features, self.entry.training_range, strict=True)
        return ", ".join(f"{feature} {value_range(low, high)}" for feature, (low, high) in pairs)

    @property
    def prior(self) -> str | None:
        """The device whose regressor answers here, corrected or carried over; None for this device's own."""
        return None if self.entry.transfer is None else self.entry.transfer.origin.device

    @property
    def is_carried(self) -> bool:
        """Whether it is a prior's regressor that was only scaled: no point was measured here."""
        return self.entry.transfer is not None and self.entry.transfer.correction is None

    @property
    def is_collective(self) -> bool:
        return OPERATORS[self.entry.operator].is_collective

    def to_dict(self) -> dict[str, Any]:
        entry = self.entry
        return {
            **plain_values(entry, "operator", "direction", "processes_per_node", "rows"),
            "error": entry.validation_error,
            "coverage": entry.interval_coverage,
            **plain_values(entry, "load", "widening", "extrapolation_error"),
            **plain_values(entry, "size_bytes", "algorithm", "form", "hyperparameters"),
            "training_range": dict(zip(entry.features, map(list, entry.training_range), strict=True)),
            "fitted": self.selected is not None,
            **plain_values(self, "prior", "roles", "layouts", "outliers"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFigures:
    """All regressors of a training, in the order of its bundle, and their means.

    Means of errors are over roles and directions with equal weight. Collectives have a mean of their own: their errors
    reflect the network more than the regressor.
    """

    trained: Trained
    operators: tuple[OperatorFigures, ...]

    @property
    def mean_validation_error(self) -> float:
        """Mean error of the operators that are no collectives, a fraction; of the collectives if all are."""
        return fmean([role.error for o in self._counted() for role in o.roles])

    @property
    def mean_collective_error(self) -> float | None:
        """Mean error of the collectives; None without any."""
        errors = [role.error for o in self.operators if o.is_collective for role in o.roles]
        return fmean(errors) if errors else None

    @property
    def mean_reference_error(self) -> float | None:
        """Mean of the published errors if all that `mean_validation_error` counts have one; else None."""
        published = [role.reference_error for o in self._counted() for role in o.roles]
        known = [error for error in published if error is not None]
        return fmean(known) if len(known) == len(published) else None

    @property
    def mean_extrapolation_error(self) -> float | None:
        """Mean error beyond the fitted range, over the operators where it was measured."""
        errors = [e for o in self._counted() if (e := o.entry.extrapolation_error) is not None]
        return fmean(errors) if errors else None

    @property
    def mean_coverage(self) -> float | None:
        """Share of held-out rows within their interval, over all regressors where it was measured."""
        measured = [(c, o.entry.rows) for o in self.operators if (c := o.entry.interval_coverage) is not None]
        return sum(c * rows for c, rows in measured) / sum(rows for _, rows in measured) if measured else None

    @property
    def held_out(self) -> tuple[HeldOut, ...]:
        """Coverage of held-out sizes, layouts and roles by distance, over all rows of all regressors."""
        found: dict[tuple[str, float], list[tuple[int, float]]] = {}
        for operator in self.operators:
            for one in operator.entry.widening.held_out if operator.entry.widening else ():
                found.setdefault((one.kind, one.doublings), []).append((one.rows, one.rows * one.inside))
        return tuple(
            HeldOut(
                kind=kind,
                doublings=doublings,
                rows=(rows := sum(count for count, _ in own)),
                inside=min(1.0, sum(inside for _, inside in own) / rows),
            )
            for (kind, doublings), own in sorted(
                found.items(), key=lambda one: (KINDS.index(one[0][0]), one[0][1])
            )
        )

    def _counted(self) -> Sequence[OperatorFigures]:
        return [o for o in self.operators if not o.is_collective] or self.operators

    @property
    def by_role(self) -> list[tuple[OperatorFigures, RoleFigures]]:
        return [(operator, role) for operator in self.operators for role in operator.roles]

    @property
    def rows(self) -> int:
        """Distinct workloads that were fitted."""
        return sum(o.entry.rows for o in self.operators)

    @property
    def size_bytes(self) -> int:
        return sum(o.entry.size_bytes for o in self.operators)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form `kernelcast.training/2` (docs/json.md)."""
        return {
            "format": FORMAT,
            "bundle": str(self.trained.path),
            "bundle_digest": self.trained.digest,
            "skipped": [
                {**values_of(one, "operator", "direction"), "reason": one.text}
                for one in self.trained.skipped
            ],
            "statistic": self.trained.manifest.statistic,
            **values_of(self.trained, "without_quiet", "samples"),
            "doubtful": dict(self.trained.doubts),
            **plain_values(self.trained, "notes", "load_ratios"),
            **values_of(self, "rows", "size_bytes", "mean_validation_error", "mean_collective_error"),
            **plain_values(self, "mean_coverage", "held_out"),
            **plain_values(self, "mean_reference_error", "mean_extrapolation_error", "operators"),
        }


def figures(trained: Trained, reference: Reference | None = None) -> TrainingFigures:
    """The figures of a training; `reference` adds published errors."""
    selections = {selected.table.key: selected for selected in trained.selections}
    return TrainingFigures(
        trained=trained,
        operators=tuple(
            _operator(entry, selections.get((*entry.key, entry.processes_per_node)), reference)
            for entry in trained.manifest.regressors
        ),
    )


def table_rows(found: TrainingFigures) -> list[dict[str, Any]]:
    """`found.by_role` as a table for `cell_text`: values by column, without columns that are empty in every row."""
    table = [
        {
            "operator": operator.entry.operator,
            "role": "" if role.name == operator.entry.operator else role.name,
            "direction": operator.entry.direction_text,
            "rows": role.rows,
            "algorithm": operator.entry.algorithm,
            "form": operator.entry.form,
            "error_percent": as_percent(role.error),
            "reference_percent": as_percent(role.reference_error),
            "coverage_percent": as_percent(operator.entry.interval_coverage),
            "extrapolated_percent": as_percent(operator.entry.extrapolation_error),
            "size_bytes": operator.entry.size_bytes,
            "range": value_ranges(operator.entry.training_range),
        }
        for operator, role in found.by_role
    ]
    filled = [name for name in table[0] if any(row[name] not in ("", None) for row in table)]
    return [{name: row[name] for name in filled} for row in table]


def as_percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


def _operator(
    entry: RegressorEntry, selected: Selected | None, reference: Reference | None
) -> OperatorFigures:
    layouts = _layouts(entry, selected, reference)
    roles = []
    for role, error in entry.role_errors.items():
        # Layouts are weighted by rows; an earlier bundle's regressor has none here: equal weights.
        own = {(layout.nodes, layout.gpus_per_node): layout.rows for layout in layouts if layout.role == role}
        rows_of = own or dict.fromkeys(entry.layouts, 1)
        roles.append(
            RoleFigures(
                role=role,
                name=role_name(entry.operator, role),
                rows=int(np.isfinite(selected.table.role_times_us[role]).sum())
                if selected
                else correcting_points(entry),
                error=error,
                reference_error=reference.error_of(entry, role, rows_of) if reference else None,
            )
        )
    return OperatorFigures(
        entry=entry, selected=selected, roles=tuple(roles), layouts=layouts, outliers=_outliers(selected)
    )


def _layouts(
    entry: RegressorEntry, selected: Selected | None, reference: Reference | None
) -> tuple[LayoutFigures, ...]:
    if selected is None:
        return ()
    found = []
    for role, layout in product(entry.role_errors, entry.layouts):
        times_us = selected.table.role_times_us[role]
        own = selected.table.in_layout(layout) & np.isfinite(times_us)
        if not own.any():
            continue
        errors = relative_errors(selected.held_out_us[own], times_us[own])
        found.append(
            LayoutFigures(
                role=role,
                nodes=layout[0],
                gpus_per_node=layout[1],
                rows=len(errors),
                error=float(errors.mean()),
                median_error=float(np.median(errors)),
                reference_error=reference.error_of_layout(entry, role, layout) if reference else None,
            )
        )
    return tuple(found)


def _outliers(selected: Selected | None) -> tuple[Outlier, ...]:
    if selected is None:
        return ()
    table = selected.table
    return tuple(
        Outlier(
            vector=tuple(map(int, table.workloads[row])),
            time_us=float(table.times_us[row]),
            held_out_us=float(selected.held_out_us[row]),
        )
        for row in selected.outliers
    )
