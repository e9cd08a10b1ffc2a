"""A question to a database, and the SQL that answers it."""

from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, what its answer means, and the SQL that answers it."""

    name: str  # in addresses
    title: str
    explanation: str
    sql: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "explanation", " ".join(dedent(self.explanation).split()))
        object.__setattr__(self, "sql", dedent(self.sql).strip())
