"""docs/sql.md: every query runs again on the small measured database, and the page shows its result."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kernelcast.docs import example_traces, generate_sql
from kernelcast.store import Database, check_database
from kernelcast.store.querying import Question, questions
from kernelcast.store.schema import documented, unit

ROOT = Path(__file__).parent.parent.parent
SMALL = ROOT / "tests" / "data" / "small.db"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of the made-up traces."""
    return example_traces.database(tmp_path_factory.mktemp("traces"))


def test_the_page_is_what_the_databases_answer(traces: Path) -> None:
    page = (ROOT / "docs" / "sql.md").read_text(encoding="utf-8")
    assert page == generate_sql.page(SMALL, traces), "docs/sql.md is not current: make docs"


def test_the_small_database_is_small_sound_and_anonymous() -> None:
    assert SMALL.stat().st_size <= 350_000
    assert check_database(SMALL) == []
    with Database.open(SMALL, read_only=True) as database:
        assert database.row_counts()["run_note"] == 0


@pytest.mark.parametrize("question", questions("questions.sql"), ids=lambda question: question.name)
def test_every_question_has_an_answer_without_this_package(question: Question) -> None:
    plain = sqlite3.connect(f"{SMALL.as_uri()}?mode=ro", uri=True)
    plain.execute("PRAGMA trusted_schema = OFF")
    # Nothing in it was measured under sustained load (tests/store/test_loads.py asks of a database where it was).
    assert plain.execute(question.sql).fetchall() or question.name == "sustained_slowdown"
    plain.close()


@pytest.mark.parametrize("question", questions("trace_questions.sql"), ids=lambda question: question.name)
def test_every_question_to_traces_has_an_answer_without_this_package(
    question: Question, traces: Path
) -> None:
    with closing(sqlite3.connect(f"{traces.as_uri()}?mode=ro", uri=True)) as plain:
        assert plain.execute(question.sql).fetchall()


def test_questions_to_traces_are_short() -> None:
    short = [question.name for question in questions("trace_questions.sql") if question.sql.count("\n") < 5]
    assert len(short) >= 10


def test_every_view_has_a_question() -> None:
    asked = " ".join(
        question.sql for question in (*questions("questions.sql"), *questions("trace_questions.sql"))
    )
    with Database.open(SMALL, read_only=True) as database:
        views = [row["name"] for row in database.query("SELECT name FROM sqlite_master WHERE type = 'view'")]
    assert [view for view in views if view not in asked] == [
        "point_time",
        "lost_part",
    ]  # steps of other views


def test_duckdb_reads_the_parquet_files_as_the_page_says(tmp_path: Path) -> None:
    import duckdb

    from kernelcast.store.export import Subset
    from kernelcast.store.parquet import export_parquet

    export_parquet(SMALL, tmp_path / "bench-parquet", Subset())
    sql = generate_sql.page(SMALL, SMALL).split("In DuckDB:")[1].split("```")[1].removeprefix("sql")
    rows = duckdb.sql(sql.replace("bench-parquet/", f"{tmp_path}/bench-parquet/")).fetchall()
    assert rows[0][:2] == ("gemm", "aten::mm")


def test_comments_of_the_schema() -> None:
    tables = documented()
    assert tables["sample"].columns["time_us"].startswith("microseconds: mean of the middle five")
    assert tables["software_history"].columns == {
        "change_percent": "relative to the previous software; NULL for the first"
    }
    names = ("time_us", "measured_s", "size_bytes", "memory_gib", "power_limit_w", "name", "gigaflops_per_s")
    assert [unit(name) for name in names] == ["us", "s", "byte", "GiB", "W", "", ""]
