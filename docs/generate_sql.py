"""Write docs/sql.md: every question of store/questions.sql with its answer from tests/data/small.db, and of made-up
traces (`make docs`).
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from kernelcast.cli.tables import text_table
from kernelcast.docs import example_traces
from kernelcast.store.querying import Question, answer, questions

ROOT = Path(__file__).resolve().parent.parent
DATABASE = ROOT / "tests" / "data" / "small.db"
PAGE = ROOT / "docs" / "sql.md"

_BEGIN = """\
# Questions in SQL

A kernelcast database is a SQLite file that documents itself: `schema.sql` has a comment per table and column, and the
file contains them ([schema.md](schema.md)). Read it with `kernelcast db query`, `sqlite3`, pandas, DuckDB or Datasette
(`kernelcast db serve` shows the questions below). The answers are from `tests/data/small.db`, which was measured on a
virtual machine with 2 cores (`docs/small_database.py` lists the commands). This page is written by `make docs`, and a
test asks every question again.

An `operator` is what is timed, such as `gemm`; a `role` is why a step calls it, such as `qkv` or `mlp_up` (the paper's
Linear1 and Linear3). The time does not depend on the role, so points are compared without it. A sample has the role
that it was measured for, or none.

    kernelcast db query tests/data/small.db "SELECT operator, roles, direction, samples FROM coverage"

"""

_TRACES = """
# Questions to traces

`kernelcast ingest` stores all events of a trace (ingesting.md). The answers below are from a made-up run of two ranks
on H100s (`docs/example_traces.py`): rank 1 computes a quarter slower, and the last all-reduce of a step is exposed.
Views have a row per trace; `trace_id` and `run_id` select one, `real_run` lists them.
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

Traces go with it: `bench-parquet/trace_event` has a file per rank, and `bench-parquet/traces.sql` makes the views above
in DuckDB, over one export or over many: [traces.md](traces.md#many-ranks).
"""


_WIDTH = 1_000  # of a page, which scrolls


def page(database: Path, traces: Path) -> str:
    """The whole page, from a database of measurements and one of traces."""
    contents = "".join(
        f"- [{q.title}](#{_anchor(q.title)})\n"
        for q in (*questions("questions.sql"), *questions("trace_questions.sql"))
    )
    of_measurements = "".join(_section(question, database) for question in questions("questions.sql"))
    of_traces = "".join(_section(question, traces) for question in questions("trace_questions.sql"))
    return f"{_BEGIN}{contents}\n{of_measurements}{_TRACES}{of_traces}{_END}"


def _anchor(title: str) -> str:
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")


def _section(question: Question, database: Path) -> str:
    with answer(database, question.sql) as found:
        rows = [["" if value is None else str(value) for value in row] for row in found.rows]
        shown = text_table(found.columns, rows, width=_WIDTH)
    return f"\n## {question.title}\n\n{question.explanation}\n\n```sql\n{question.sql}\n```\n\n```text\n{shown}\n```\n"


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        PAGE.write_text(page(DATABASE, example_traces.database(Path(folder))), encoding="utf-8")
    asked = (*questions("questions.sql"), *questions("trace_questions.sql"))
    print(f"{PAGE.relative_to(ROOT)}: {len(asked)} questions")
