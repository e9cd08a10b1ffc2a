"""Write docs/sql.md: every question of store/questions.py with its answer from tests/data/small.db (`make docs`)."""

from pathlib import Path

from kernelcast.cli.tables import text_table
from kernelcast.store.querying import answer
from kernelcast.store.questions import QUESTIONS, Question
from kernelcast.store.schema_comments import documented

ROOT = Path(__file__).resolve().parent.parent
DATABASE = ROOT / "tests" / "data" / "small.db"
PAGE = ROOT / "docs" / "sql.md"

_BEGIN = """\
# Questions in SQL

A kernelcast database is a SQLite file that documents itself: `schema.sql` has a comment per table and column, and the
file contains them. Read it with `kernelcast db query`, `sqlite3`, pandas, DuckDB or Datasette (`kernelcast db serve`
shows the questions below). The answers are those of `tests/data/small.db`, which was measured on a virtual machine with
2 cores (`docs/small_database.py` lists the commands). This page is written by `make docs`, and a test asks every
question again.

An `operator` is what is timed, such as `gemm`; a `role` is why a step calls it, such as `qkv` or `mlp_up` (the paper's
Linear1 and Linear3). The time does not depend on the role, so points are compared without it. A sample has the role
that it was measured for, or none.

    kernelcast db query tests/data/small.db "SELECT operator, roles, direction, samples FROM coverage"

"""

_END = """\

## Traces that outgrow one file

`kernelcast db export bench.db bench-parquet --format parquet` (extra `parquet`) writes one Parquet file per hardware
and operator, in folders that DuckDB, Spark, Dask and pandas read as a partitioned dataset. In DuckDB:

```sql
SELECT operator, name AS kernel, count(*) AS launches, round(sum(duration_us) / 1e3, 3) AS total_ms
FROM read_parquet('bench-parquet/kernel/*/*/*.parquet', hive_partitioning = true)
GROUP BY operator, name
ORDER BY total_ms DESC
LIMIT 5;
```
"""


def page(database: Path = DATABASE) -> str:
    """The whole page."""
    contents = "".join(f"- [{q.title}](#{_anchor(q.title)})\n" for q in QUESTIONS)
    tables = f"## Tables and views\n\n| name | what it holds |\n|---|---|\n{_all_tables()}"
    questions = "".join(_section(question, database) for question in QUESTIONS)
    return f"{_BEGIN}{contents}\n{questions}\n{tables}{_END}"


def _all_tables() -> str:
    return "".join(f"| `{table.name}` | {table.comment} |\n" for table in documented().values())


def _anchor(title: str) -> str:
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")


def _section(question: Question, database: Path) -> str:
    with answer(database, question.sql) as found:
        rows = [["" if value is None else str(value) for value in row] for row in found.rows]
        shown = text_table(found.columns, rows)
    return f"\n## {question.title}\n\n{question.explanation}\n\n```sql\n{question.sql}\n```\n\n```text\n{shown}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(QUESTIONS)} questions")
