"""The views of traces, on a timeline whose figures are computed by hand (conftest.py)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.store import Database, IngestedTrace, check_database
from kernelcast.store.export import Subset, export_database
from kernelcast.store.trace_page import trace_page
from kernelcast.store.trace_report import PARTS, trace_report, traced_runs

TraceAdder = Callable[..., IngestedTrace]


def test_the_parts_of_each_step(database: Database, add_trace: TraceAdder) -> None:
    add_trace()
    first, second = database.query("SELECT * FROM step_time ORDER BY step_index")
    # 20 µs of product, of 30 µs of all-reduce the last 20 alone; the unknown launch leaves no idle time here.
    assert [first[part] for part in PARTS] == [0.02, 0.02, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert (first["device_ms"], first["communication_ms"], first["overlapped_percent"]) == (0.04, 0.03, 33.3)
    # 10 µs idle, including 8 before the launch, then a copy of 5 on another stream than the all-reduce before.
    assert [second[part] for part in PARTS] == [0.0, 0.0, 0.005, 0.008, 0.002, 0.0, 0.0]
    assert second["overlapped_percent"] is None


def test_a_timeline_that_is_stored_again_is_not_stored_twice(
    database: Database, add_trace: TraceAdder
) -> None:
    add_trace()
    before = database.row_counts(), database.content_digest()
    add_trace()
    assert (database.row_counts(), database.content_digest()) == before


def test_rates(database: Database, add_trace: TraceAdder) -> None:
    add_trace()
    [product] = database.query("SELECT * FROM product_rate")
    assert (product["calls"], product["mean_us"], product["percent_of_peak"], product["bound"]) == (
        1,
        20.0,
        None,
        None,
    )
    # 2 · 4 · 8 · 3 operations, (4 · 8 + 8 · 3 + 4 · 3) · 2 bytes.
    assert product["flops_per_byte"] == pytest.approx(192 / 136, abs=0.1)
    [collective] = database.query("SELECT * FROM collective_rate")
    # Bus bandwidth of an all-reduce of two: 2 · (2 - 1) / 2 of its bytes.
    assert collective["bus_gb_per_s"] == pytest.approx(4096 / 30e-6 / 1e9, abs=1e-3)


def test_idle_streams(database: Database, add_trace: TraceAdder) -> None:
    add_trace()
    compute, nccl = database.query("SELECT * FROM stream_idle ORDER BY stream")
    # 30 µs before the copy, which was launched in the gap.
    assert (compute["stream"], compute["idle_ms"], compute["host_ms"], compute["waiting_ms"]) == (
        7,
        0.03,
        0.03,
        0.0,
    )
    assert (nccl["stream"], nccl["idle_ms"]) == (20, 0.0)


def test_ranks_and_the_report(database: Database, add_trace: TraceAdder) -> None:
    add_trace(rank=0)
    add_trace(rank=1)
    [run_id] = traced_runs(database)
    report = trace_report(database, run_id, top=2)
    assert len(report.kernels) == 2
    assert report.parts_ms["compute_ms"] == 0.0  # the second step only copies
    assert report.parts_ms["memory_ms"] == report.steps[1]["memory_ms"] > 0
    assert report.ranks == []  # no collective is matched


def test_a_page_has_40_rows_of_a_table_and_says_so_of_more(database: Database, add_trace: TraceAdder) -> None:
    add_trace()
    report = trace_report(database, *traced_runs(database), top=2)
    for count, said in ((40, False), (41, True)):
        page = trace_page(database, replace(report, kernels=report.kernels[:1] * count))
        assert ("The first 40 of 41 rows." in page, "The first 40 of 40" in page) == (said, False)


def test_peaks_of_known_devices(tmp_path: Path) -> None:
    from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, SoftwareFingerprint
    from kernelcast.store import MeasuredRun, Run

    compute = ComputeFingerprint(kind="cuda", device_name="NVIDIA H100 80GB HBM3")
    software = SoftwareFingerprint(torch="")
    run = Run(command="ingest", compute_id=compute.digest,
        software_id=software.digest,
    )  # fmt: skip
    with Database.open(tmp_path / "new.db", create=True) as database:
        database.add_runs(
            [MeasuredRun(run=run, compute=compute, fabric=None, software=software, samples=(), traces=())]
        )
        peaks = {row["dtype"]: row["flops_per_s"] for row in database.query("SELECT * FROM device_peak")}
    assert peaks["bfloat16"] == pytest.approx(989e12, rel=0.01)


def test_an_export_has_the_timeline_of_its_traces(
    database: Database, add_trace: TraceAdder, tmp_path: Path
) -> None:
    add_trace(rank=0)
    whole = tmp_path / "whole.db"
    exported = export_database(database.path, whole, Subset(anonymous=True))
    assert exported.content_digest != ""
    assert exported.texts["annotations and modules"] == ["forward"]
    with Database.open(whole) as copy:
        assert copy.row_counts()["traced_event"] == 3
    assert check_database(whole) == []


def test_a_report_has_the_figures_of_the_views(database: Database, add_trace: TraceAdder) -> None:
    for rank in (0, 1):
        add_trace(rank=rank)
    [run_id] = traced_runs(database)
    report = trace_report(database, run_id)
    counted = [step["in_mean"] for step in report.steps]
    assert counted == [int(step["step_index"] == 1) for step in report.steps]
    steps = [
        {name: value for name, value in step.items() if name not in ("in_mean", "outside")}
        for step in report.steps
    ]
    assert steps == database.query("SELECT * FROM step_time ORDER BY rank, step_index")
    assert report.streams == database.query("SELECT * FROM stream_idle ORDER BY rank, busy_ms DESC")
    for rows, view in (
        (report.products, "product_rate"),
        (report.collectives, "collective_rate"),
        (report.launches, "launch_delay"),
    ):
        columns = ", ".join(name for name in rows[0] if name != "exposed_ms")
        found = [{name: row[name] for name in columns.split(", ")} for row in rows]
        assert sorted(map(str, found)) == sorted(map(str, database.query(f"SELECT {columns} FROM {view}")))
    kernels = "SELECT kernel, sum(launches), round(sum(exposed_us) / 1e3, 3) FROM kernel_time GROUP BY kernel"
    assert {(one["kernel"], one["launches"], one["exposed_ms"]) for one in report.kernels} == {
        tuple(row.values()) for row in database.query(kernels)
    }
    # The temporary tables are gone, and the views answer as before.
    assert database.query("SELECT count(*) AS ranks FROM rank_arrival") == [{"ranks": 0}]
