"""The comments of schema.sql as data: what each table, view and column means, and the unit in its name."""

import re
from dataclasses import dataclass
from functools import cache

from kernelcast.store.schema import SCHEMA_PATH

# What the end of a column's name says, as pint and people write it.
_UNITS = (
    ("_us", "us"), ("_bytes", "byte"), ("_gib", "GiB"), ("_mhz", "MHz"), ("_percent", "percent"),
    ("_w", "W"), ("_c", "degC"), ("flops_per_s", ""), ("bytes_per_s", ""), ("_s", "s"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Documented:
    """A table or view: what it is, and its columns with what they hold (views: those that say it)."""

    name: str
    comment: str
    columns: dict[str, str]


@cache
def documented() -> dict[str, Documented]:
    """Every table and view of schema.sql, in its order."""
    found: dict[str, Documented] = {}
    current: Documented | None = None
    for line in SCHEMA_PATH.read_text(encoding="utf-8").splitlines():
        if head := re.match(r"CREATE (?:TABLE|VIEW) (\w+) .*?-- (.+)$", line):
            current = Documented(name=head[1], comment=head[2], columns={})
            found[current.name] = current
        elif current and (column := re.match(r"    (?:.* AS |\) AS |\w+\.)?(\w+)\b[^-]*,? -- (.+)$", line)):
            current.columns[column[1]] = column[2]
    return found


def unit(column: str) -> str:
    """The unit that a column's name ends in, empty where it has none."""
    return next((unit for ending, unit in _UNITS if column.endswith(ending)), "")
