"""The table role × direction, as it is printed and as it stands on the report's page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelcast.runtime.views.formatting import amount, percent, value_ranges
from kernelcast.train.report.figures import OperatorFigures, RoleFigures, TrainingFigures

Row = tuple[OperatorFigures, RoleFigures]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is shown, and what it sorts by: a number, a word, or nothing where the figure does not exist."""

    text: str
    value: float | str


_CellOf = Callable[[OperatorFigures, RoleFigures], Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its heading, whether it holds numbers, and a cell per role and direction."""

    heading: str
    is_number: bool
    cells: tuple[Cell, ...]


def rows(figures: TrainingFigures) -> Sequence[Row]:
    """The rows in order: every regressor in each of its roles."""
    return [(operator, role) for operator in figures.operators for role in operator.roles]


def columns(figures: TrainingFigures) -> tuple[Column, ...]:
    """The columns in order; one without a figure for any row is left out."""
    found = [
        Column(heading=heading, is_number=is_number, cells=tuple(cell(o, role) for o, role in rows(figures)))
        for heading, is_number, cell in _COLUMNS
    ]
    return tuple(column for column in found if any(cell.value != "" for cell in column.cells))


def _word(text: Callable[[OperatorFigures, RoleFigures], str]) -> _CellOf:
    return lambda operator, role: Cell(text=text(operator, role), value=text(operator, role))


def _fraction(value: Callable[[OperatorFigures, RoleFigures], float | None]) -> _CellOf:
    def cell(operator: OperatorFigures, role: RoleFigures) -> Cell:
        found = value(operator, role)
        return Cell(text=percent(found), value="" if found is None else found)

    return cell


def _count(operator: OperatorFigures, role: RoleFigures) -> Cell:
    return Cell(
        text="" if role.rows is None else f"{role.rows:,}", value="" if role.rows is None else role.rows
    )


_COLUMNS: Sequence[tuple[str, bool, _CellOf]] = (
    ("operator", False, _word(lambda o, role: o.entry.operator)),
    ("role", False, _word(lambda o, role: "" if role.name == o.entry.operator else role.name)),
    ("direction", False, _word(lambda o, role: o.entry.direction_text)),
    ("rows", True, _count),
    ("algorithm", False, _word(lambda o, role: o.entry.algorithm)),
    ("form", False, _word(lambda o, role: o.entry.form)),
    ("error", True, _fraction(lambda o, role: role.error)),
    ("reference", True, _fraction(lambda o, role: role.reference_error)),
    ("coverage", True, _fraction(lambda o, role: o.entry.interval_coverage)),
    ("extrapolated", True, _fraction(lambda o, role: o.entry.extrapolation_error)),
    ("size", True, lambda o, role: Cell(text=amount(o.entry.size_bytes, "B"), value=o.entry.size_bytes)),
    ("range", False, _word(lambda o, role: value_ranges(o.entry.training_range))),
)
