"""Frequent questions to a database, read from questions.sql and trace_questions.sql."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, what its answer means, and the SQL that answers it."""

    name: str  # in addresses
    title: str
    explanation: str
    sql: str


@cache
def measurement_questions() -> tuple[Question, ...]:
    """Questions to measured operators, steps and regressors."""
    return _questions("questions.sql")


@cache
def trace_questions() -> tuple[Question, ...]:
    """Questions to traces of real runs."""
    return _questions("trace_questions.sql")


def _questions(file: str) -> tuple[Question, ...]:
    """Blocks that an empty line separates, after the first: `-- NAME: TITLE`, `-- EXPLANATION`, the query with `;`."""
    found = []
    for block in (_FOLDER / file).read_text(encoding="utf-8").split("\n\n")[1:]:
        lines = block.strip().splitlines()
        head, *explanation = (line.removeprefix("-- ") for line in lines if line.startswith("-- "))
        name, _, title = head.partition(": ")
        sql = "\n".join(line for line in lines if not line.startswith("-- ")).removesuffix(";")
        found.append(Question(name=name, title=title, explanation=" ".join(explanation), sql=sql))
    return tuple(found)
