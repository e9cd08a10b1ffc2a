"""What is done for one operator and direction: choose, fit, calibrate, export, compare. Needs no database."""

from collections.abc import Sequence
from dataclasses import dataclass

from kernelcast.runtime.bundle.manifest import RegressorEntry
from kernelcast.train.dataset import Table
from kernelcast.train.export import to_onnx
from kernelcast.train.intervals import calibrate, layouts_of
from kernelcast.train.parity import check_parity
from kernelcast.train.properties import properties, training_range
from kernelcast.train.recipe import recipe_digest, table_digest
from kernelcast.train.scope import Scope
from kernelcast.train.selection import Selected, select


@dataclass(frozen=True, slots=True, kw_only=True)
class FitTask:
    """A table to fit, with the tables of its family, and the operator's own of fewer processes per node.

    `scope` says what was measured; its samples are not needed.
    """

    table: Table
    relatives: Sequence[Table]
    scope: Scope
    statistic: str
    seed: int
    base: Table | None = None

    @property
    def recipe(self) -> str:
        """Digest of everything beside the table that decides the model and its entry."""
        return recipe_digest(self.scope, self.statistic, self.seed, self.relatives, self.base)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A regressor's ONNX model and entry; `selected` is None where both were taken over from an earlier bundle."""

    selected: Selected | None
    model: bytes
    entry: RegressorEntry


def fit_table(task: FitTask) -> Fitted:
    """Choose and fit a regressor, and export it.

    Raises:
        DataError: the export answers other than its regressor.
    """
    table, scope = task.table, task.scope
    selected = select(table, task.seed, task.relatives, task.base)
    candidate = selected.regressor.candidate
    calibrated = calibrate(table, selected.held_out_us, task.seed)
    interval, coverage = calibrated.interval, calibrated.coverage
    model = to_onnx(
        selected.regressor, interval, properties(selected, interval, coverage, scope, task.statistic)
    )
    check_parity(model, selected.regressor, interval, table, task.seed)
    entry = RegressorEntry.for_model(
        model,
        operator=table.operator,
        direction=table.direction,
        dtype=scope.dtype,
        training_range=training_range(selected),
        algorithm=candidate.algorithm,
        form=candidate.form,
        hyperparameters=candidate.settings,
        validation_error=selected.validation_error,
        extrapolation_error=selected.extrapolation_error,
        interval=interval,
        interval_coverage=coverage,
        layouts=layouts_of(table),
        rows=len(table),
        statistic=task.statistic,
        table_digest=table_digest(table),
        recipe_digest=task.recipe,
        processes_per_node=table.processes_per_node,
    )
    return Fitted(selected=selected, model=model, entry=entry)
