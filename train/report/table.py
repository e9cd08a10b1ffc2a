"""The table operator × direction, as it is printed and as it stands on the report's page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kernelcast.train.report.figures import OperatorFigures, TrainingFigures
from kernelcast.train.report.words import amount_text, percent_text, ranges_text


class Kind(StrEnum):
    """How a column is set: words, numbers flush right, or ranges, which may be long."""

    WORD = "word"
    NUMBER = "number"
    RANGE = "range"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is shown, and what it sorts by: a number, a word, or nothing where there is no such figure."""

    text: str
    value: float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its heading and a cell per operator and direction."""

    heading: str
    kind: Kind
    cells: tuple[Cell, ...]


def columns(figures: TrainingFigures) -> tuple[Column, ...]:
    """The columns in order; one that has a figure for no operator is left out."""
    found = [
        Column(heading=heading, kind=kind, cells=tuple(map(cell, figures.operators)))
        for heading, kind, cell in _COLUMNS
    ]
    return tuple(column for column in found if any(cell.value != "" for cell in column.cells))


def _word(text: Callable[[OperatorFigures], str]) -> Callable[[OperatorFigures], Cell]:
    return lambda operator: Cell(text=text(operator), value=text(operator))


def _fraction(value: Callable[[OperatorFigures], float | None]) -> Callable[[OperatorFigures], Cell]:
    def cell(operator: OperatorFigures) -> Cell:
        found = value(operator)
        return Cell(text=percent_text(found), value="" if found is None else found)

    return cell


_COLUMNS: Sequence[tuple[str, Kind, Callable[[OperatorFigures], Cell]]] = (
    ("operator", Kind.WORD, _word(lambda o: o.entry.operator)),
    ("direction", Kind.WORD, _word(lambda o: o.entry.direction_text)),
    ("rows", Kind.NUMBER, lambda o: Cell(text=f"{o.entry.rows:,}", value=o.entry.rows)),
    ("algorithm", Kind.WORD, _word(lambda o: o.entry.algorithm)),
    ("form", Kind.WORD, _word(lambda o: o.entry.form)),
    ("error", Kind.NUMBER, _fraction(lambda o: o.entry.validation_error)),
    ("reference", Kind.NUMBER, _fraction(lambda o: o.reference_error)),
    ("coverage", Kind.NUMBER, _fraction(lambda o: o.entry.interval_coverage)),
    ("extrapolated", Kind.NUMBER, _fraction(lambda o: o.entry.extrapolation_error)),
    (
        "size",
        Kind.NUMBER,
        lambda o: Cell(text=amount_text(o.entry.size_bytes, "B"), value=o.entry.size_bytes),
    ),
    ("range", Kind.RANGE, _word(lambda o: ranges_text(o.entry.training_range))),
)
