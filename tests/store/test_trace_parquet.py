"""Traces in Parquet files: DuckDB answers the views over them as SQLite does, over several exports at once."""

from pathlib import Path
from typing import Any

import pytest

from kernelcast.collector.ingest import ingest_traces
from kernelcast.docs import example_traces
from kernelcast.store import Database
from kernelcast.store.export import Subset
from tests.collector.ingest.rank_traces import MadeRun

pytest.importorskip("pyarrow")
duckdb: Any = pytest.importorskip("duckdb")

from kernelcast.store.parquet import export_parquet  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
VIEWS = (
    "trace_event", "step_time", "kernel_time", "host_operator_time", "product_rate", "collective_rate",
    "collective_match", "rank_arrival", "stream_idle", "copy_rate", "launch_delay",
)  # fmt: skip


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """All four ranks of a run in one database, and one database per half of them."""
    folder = tmp_path_factory.mktemp("ranks")
    traces = example_traces.write(folder, 4)
    halves = []
    for number in (0, 1):
        halves.append(folder / f"half{number}.db")
        ingest_traces(traces[2 * number : 2 * number + 2], halves[-1], gpus_per_node=4)
    ingest_traces(traces, folder / "all.db", gpus_per_node=4)
    return folder / "all.db", halves


def asked(folder: str, sql: str) -> Any:
    connection = duckdb.connect()
    script = next(Path(folder.replace("/*", "")).rglob("traces.sql")).read_text(encoding="utf-8")
    connection.execute(f"SET VARIABLE exports = '{folder}'")
    connection.execute(script)
    return connection.execute(sql)


@pytest.mark.parametrize("view", VIEWS)
def test_duckdb_answers_as_sqlite(databases: tuple[Path, list[Path]], tmp_path: Path, view: str) -> None:
    whole, _ = databases
    rows = export_parquet(whole, tmp_path / "out", Subset())
    answer = asked(f"{tmp_path}/out", f"SELECT * FROM {view}")
    names = [column[0] for column in answer.description]
    with Database.open(whole, read_only=True) as database:
        expected = database.query(f"SELECT * FROM {view}")
    assert rows["trace_event"] == 4 * 2 * 32
    found = [dict(zip(names, row, strict=True)) for row in answer.fetchall()]
    assert len(found) == len(expected) > 0

    def key(row: dict[str, Any]) -> str:
        return repr([row[name] for name in names if not isinstance(row[name], float)])

    for one, other in zip(sorted(found, key=key), sorted(expected, key=key), strict=True):
        for name in names:
            value = other[name]
            wanted = pytest.approx(value, rel=1e-3, abs=2e-3) if isinstance(value, float) else value
            assert one[name] == wanted, (view, name)


def test_parts_of_collectives_that_the_profiler_lost(tmp_path: Path) -> None:
    made = MadeRun(ranks=4, loader_us={2: 2000.0}, lost={2: (3, 5)}).write(tmp_path / "ranks")
    ingest_traces(sorted(made.glob("*.json")), tmp_path / "traces.db")
    export_parquet(tmp_path / "traces.db", tmp_path / "out", Subset())
    question = (
        "SELECT rank, sum(is_lost), round(sum(delay_us)) FROM collective_match GROUP BY 1 ORDER BY 3 DESC"
    )
    found = asked(f"{tmp_path}/out", question).fetchall()
    assert found[0][:2] == (2, 2)
    with Database.open(tmp_path / "traces.db", read_only=True) as database:
        assert found == [tuple(row.values()) for row in database.query(question)]


def test_the_slow_rank_over_several_exports(databases: tuple[Path, list[Path]], tmp_path: Path) -> None:
    _, halves = databases
    for number, half in enumerate(halves):
        export_parquet(half, tmp_path / f"out{number}", Subset())
    slowest = "SELECT rank, avg(compute_ms) FROM step_time GROUP BY rank ORDER BY 2 DESC, 1"
    rows = asked(f"{tmp_path}/*", slowest).fetchall()
    assert [rank for rank, _ in rows] == [1, 0, 2, 3]
    assert rows[0][1] == pytest.approx(1.2327 * rows[1][1], rel=1e-3)


def test_a_part_without_traces(databases: tuple[Path, list[Path]], tmp_path: Path) -> None:
    rows = export_parquet(databases[0], tmp_path / "out", Subset(operators=("gemm",)))
    assert rows["trace_event"] == 0
    assert not (tmp_path / "out" / "traces.sql").exists()
