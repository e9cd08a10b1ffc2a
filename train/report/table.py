"""The table operator × direction, as it is printed and as it stands on the report's page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelcast.runtime.views.formatting import amount, percent, value_ranges
from kernelcast.train.report.figures import OperatorFigures, TrainingFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is shown, and what it sorts by: a number, a word, or nothing where the figure does not exist."""

    text: str
    value: float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its heading, whether it holds numbers, and a cell per operator and direction."""

    heading: str
    is_number: bool
    cells: tuple[Cell, ...]


def columns(figures: TrainingFigures) -> tuple[Column, ...]:
    """The columns in order; one without a figure for any operator is left out."""
    found = [
        Column(heading=heading, is_number=is_number, cells=tuple(map(cell, figures.operators)))
        for heading, is_number, cell in _COLUMNS
    ]
    return tuple(column for column in found if any(cell.value != "" for cell in column.cells))


def _word(text: Callable[[OperatorFigures], str]) -> Callable[[OperatorFigures], Cell]:
    return lambda operator: Cell(text=text(operator), value=text(operator))


def _fraction(value: Callable[[OperatorFigures], float | None]) -> Callable[[OperatorFigures], Cell]:
    def cell(operator: OperatorFigures) -> Cell:
        found = value(operator)
        return Cell(text=percent(found), value="" if found is None else found)

    return cell


_COLUMNS: Sequence[tuple[str, bool, Callable[[OperatorFigures], Cell]]] = (
    ("operator", False, _word(lambda o: o.entry.operator)),
    ("direction", False, _word(lambda o: o.entry.direction_text)),
    ("rows", True, lambda o: Cell(text=f"{o.entry.rows:,}", value=o.entry.rows)),
    ("algorithm", False, _word(lambda o: o.entry.algorithm)),
    ("form", False, _word(lambda o: o.entry.form)),
    ("error", True, _fraction(lambda o: o.entry.validation_error)),
    ("reference", True, _fraction(lambda o: o.reference_error)),
    ("coverage", True, _fraction(lambda o: o.entry.interval_coverage)),
    ("extrapolated", True, _fraction(lambda o: o.entry.extrapolation_error)),
    ("size", True, lambda o: Cell(text=amount(o.entry.size_bytes, "B"), value=o.entry.size_bytes)),
    ("range", False, _word(lambda o: value_ranges(o.entry.training_range))),
)
