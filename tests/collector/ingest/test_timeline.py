"""What is stored of a hand-written step, event by event."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelcast.collector.ingest import ingest_traces
from kernelcast.collector.ingest.attribute_kernels import extract
from kernelcast.collector.ingest.open_traces import opened_traces
from kernelcast.collector.ingest.recognised_calls import product_shape
from kernelcast.collector.ingest.timeline import TraceEvents
from kernelcast.store import Database, check_database
from kernelcast.store.trace_report import trace_report, traced_runs

FileMaker = Callable[..., Path]


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "bench.db"


def asked(db: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(db)) as plain:
        return plain.execute(sql).fetchall()


def marked(step: Any, name: str = "ProfilerStep#7") -> Any:
    """The step with annotations of a step and of a part of its forward pass."""
    step.host("user_annotation", name, 999, 100_000, 1, {})
    step.host("user_annotation", "attention", 1050, 60, 1, {})
    return step


def test_every_event_once(make_file: FileMaker, db: Path, step: Any) -> None:
    ingest_traces([make_file("rank0.json", events=marked(step).events)], db)
    assert check_database(db) == []
    rows = asked(
        db, "SELECT name, operator, direction, scope, step, m, k, n FROM trace_event ORDER BY sequence"
    )
    assert len(rows) == 16
    assert rows[2] == ("gemm_qkv", "gemm", "forward", "attention", "ProfilerStep#7", 4, 8, 24)
    # A backward kernel has the scope of its forward call; aten::mm there has no shapes in this trace.
    assert ("gemm_dw", "gemm", "backward", "attention", "ProfilerStep#7", None, None, None) in rows
    [total] = asked(
        db,
        "SELECT sum(exposed_us) + sum(idle_us), max(start_us + duration_us) - min(start_us) FROM trace_event",
    )
    assert total[0] == pytest.approx(total[1])
    [collective] = asked(
        db,
        "SELECT collective, group_size, message_bytes, dtype, operator FROM trace_event WHERE class <> 'compute'",
    )
    assert collective == ("allreduce", 2, 8192, "bfloat16", "all_reduce")


# As PyTorch and the CUDA types behind it spell them.
SPELLINGS = {
    torch.float64: ("Double", "float64"), torch.float32: ("Float", "float32"), torch.bfloat16: ("BFloat16",),
    torch.float16: ("Half", "c10::Half", "float16"), torch.int64: ("Long", "int64"), torch.int32: ("Int", "int32"),
    torch.int16: ("Short",), torch.int8: ("Char", "int8", "signed char"), torch.bool: ("Bool",),
    torch.uint8: ("Byte", "uint8", "unsigned char"), torch.float8_e4m3fn: ("Float8_e4m3fn",),
    torch.float8_e5m2: ("Float8_e5m2",), torch.float8_e4m3fnuz: ("Float8_e4m3fnuz",),
    torch.float8_e5m2fnuz: ("Float8_e5m2fnuz",),
}  # fmt: skip


def test_a_message_is_its_elements_times_their_width(make_file: FileMaker, db: Path, step: Any) -> None:
    expected = {}
    for dtype, names in SPELLINGS.items():
        for name in names:
            elements = 1000 + len(expected)
            expected[f"nccl {elements}"] = elements * dtype.itemsize
            step.kernel(
                f"nccl {elements}", 3000 + 2.0 * len(expected), 1.0, stream=20, dtype=name,
                **{"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": 1, "Group size": 2},
            )  # fmt: skip
    ingest_traces([make_file("rank0.json", events=marked(step).events)], db)
    found = dict(asked(db, "SELECT name, message_bytes FROM trace_event WHERE name LIKE 'nccl %'"))
    assert found == expected


def test_the_parts_of_the_step(make_file: FileMaker, db: Path, step: Any) -> None:
    ingest_traces([make_file("rank0.json", events=marked(step, "train_step 3").events)], db)
    [row] = asked(
        db,
        "SELECT step, compute_ms, exposed_communication_ms, memory_ms, idle_ms, communication_ms FROM step_time"
        " WHERE step IS NOT NULL",
    )
    # 15 kernels of 136 µs with gaps of 1 µs; the 15 µs of the all-reduce begin after 2 of them and fill one gap, and
    # its launch is not recorded.
    assert row[:2] == ("train_step 3", 0.136)
    [all_reduce] = asked(db, "SELECT exposed_us, late_us FROM trace_event WHERE class = 'communication'")
    assert all_reduce == (1.0, None)
    [idle] = asked(db, "SELECT sum(idle_us) FROM trace_event")
    assert idle == (13.0,)


def test_what_was_launched_before_the_recording_is_in_no_step(
    make_file: FileMaker, db: Path, step: Any
) -> None:
    marked(step, "ProfilerStep#3")
    first_us = min(event["ts"] for event in step.events if event["cat"] == "kernel")
    step.kernel("left over", first_us - 400, 300.0)
    # Its stream had run a launched kernel before: only the record of its launch is lost.
    step.kernel("lost", step.device_us, 5.0)
    ingest_traces([make_file("rank0.json", events=step.events)], db)
    rows = asked(db, "SELECT name, step FROM trace_event WHERE name IN ('left over', 'lost') ORDER BY name")
    assert rows == [("left over", None), ("lost", "ProfilerStep#3")]
    [compute] = asked(db, "SELECT compute_ms FROM step_time WHERE step IS NOT NULL")
    assert compute == (0.141,)


@pytest.mark.parametrize("mark", ["ProfilerStep#", "iteration ", "train_step_"])
def test_pauses_of_the_profiler_and_several_devices(
    make_file: FileMaker, tmp_path: Path, step: Any, mark: str
) -> None:
    """Steps of 2 ms in two cycles of the profiler, in which kernels of two devices overlap by half."""
    step.events.clear()
    for number, start_us in ((5, 1000.0), (6, 3000.0), (15, 60_000.0), (16, 62_000.0)):
        step.host("user_annotation", f"{mark}{number}", start_us, 1999, 1, {})
        step.host_us, step.device_us = start_us + 1, start_us + 100
        step.call("aten::mm", kernels=(("one", 900.0), ("two", 900.0)))
        step.events[-1]["args"]["device"] = 1
        step.events[-1]["ts"] -= 450
    with opened_traces([make_file("cycles.json", events=step.events)]) as database:
        report = trace_report(database, *traced_runs(database))
        rows = database.query("SELECT step, device_ms FROM step_time")
    times = [(f"{mark}{number}", ms) for number, ms in ((5, 1.351), (6, 2.0), (15, 1.351), (16, 2.0))]
    assert [(row["step"], row["device_ms"]) for row in report.steps] == times
    assert [(row["step"], row["device_ms"]) for row in rows] == times
    assert sum(report.parts_ms.values()) == pytest.approx((2.0 + 1.351 + 2.0) / 3)
    assert {(row["device"], row["busy_ms"]) for row in report.streams} == {(0, 3.6), (1, 3.6)}


def test_marks_that_count_otherwise_are_no_pauses(make_file: FileMaker, tmp_path: Path, step: Any) -> None:
    step.events.clear()
    for place, number in enumerate((10, 20, 30, 10, 20)):
        start_us = 1000.0 + 2000 * place
        step.host("user_annotation", f"iteration {number}", start_us, 1900, 1, {})
        step.host_us, step.device_us = start_us + 1, start_us + 100
        step.call("aten::mm", kernels=(("one", 900.0),))
    with opened_traces([make_file("marks.json", events=step.events)]) as database:
        rows = database.query("SELECT device_ms FROM step_time")
    assert [row["device_ms"] for row in rows] == [0.9, 2.0, 2.0, 2.0, 2.0]


def test_events_point_to_their_sample(make_file: FileMaker, db: Path, step: Any) -> None:
    ingest_traces([make_file("rank0.json", events=step.events)], db)
    assert asked(
        db,
        "SELECT trace_event.name, repetition_index FROM trace_event JOIN sample ON sample.number = sample_number"
        " WHERE sample.role = 'qkv' AND sample.direction = 'backward' ORDER BY sequence",
    ) == [("gemm_dx", 0), ("gemm_dw", 0)]
    [unrecognised] = asked(
        db, "SELECT count(*) FROM trace_event WHERE sample_number IS NULL AND reason <> ''"
    )
    assert unrecognised == (1,)


def test_a_second_ingest_and_a_merge_add_nothing(make_file: FileMaker, db: Path, tmp_path: Path) -> None:
    from kernelcast.store import merge_databases

    ingest_traces([make_file("rank0.json")], db)
    other = tmp_path / "other.db"
    ingest_traces([make_file("rank1.json", rank=1)], other)
    both, reverse = tmp_path / "both.db", tmp_path / "reverse.db"
    one = merge_databases([db, other], both)
    two = merge_databases([other, db, other], reverse)
    assert one.content_digest == two.content_digest
    assert check_database(both) == []
    with Database.open(both) as database:
        counts = database.row_counts()
        assert (counts["timeline"], counts["traced_event"]) == (2, 32)
    sql = (
        "SELECT rank, name, start_us, sample.id FROM trace_event LEFT JOIN sample ON number = sample_number"
        " ORDER BY 1, 3, 2"
    )
    assert asked(both, sql) == sorted(
        asked(db, sql) + asked(other, sql), key=lambda row: (row[0], row[2], row[1])
    )


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        ("UPDATE traced_event SET duration_ns = duration_ns + 1 WHERE sequence = 3", "does not match its id"),
        ("DELETE FROM traced_event WHERE sequence = 3", "rows of traced_event are not numbered without gaps"),
        ("UPDATE event_kind SET m = 5 WHERE m IS NOT NULL", "event_kind"),
    ],
)
def test_a_changed_event_is_found(make_file: FileMaker, db: Path, damage: str, finding: str) -> None:
    ingest_traces([make_file("rank0.json")], db)
    with closing(sqlite3.connect(db, isolation_level=None)) as plain:
        plain.execute(damage)
    [found] = check_database(db)
    assert finding in found


@pytest.mark.parametrize(
    ("name", "dims", "expected"),
    [
        ("aten::mm", ((4, 8), (8, 3)), (1, 4, 8, 3)),
        ("aten::addmm", ((3,), (4, 8), (8, 3)), (1, 4, 8, 3)),
        ("aten::bmm", ((7, 4, 8), (7, 8, 3)), (7, 4, 8, 3)),
        ("aten::linear", ((2, 5, 8), (3, 8), (3,)), (1, 10, 8, 3)),
        ("aten::linear", ((4, 8), (3, 8)), (1, 4, 8, 3)),
        ("aten::mm", ((4, 8), (7, 3)), None),
        ("aten::mm", ((4, 8),), None),
        ("aten::add", ((4, 8), (8, 3)), None),
    ],
)
def test_products_by_their_shapes(name: str, dims: tuple[tuple[int, ...], ...], expected: Any) -> None:
    assert product_shape(name, dims) == expected


def test_kernels_of_less_than_5_us_are_short(make_file: FileMaker, step: Any) -> None:
    step.events.clear()
    step.host("user_annotation", "ProfilerStep#1", 1000.0, 1900, 1, {})
    step.host_us, step.device_us = 1001.0, 1100.0
    step.call("aten::mm", kernels=(("one", 4.0), ("two", 4.999), ("three", 5.0), ("four", 6.0)))
    with opened_traces([make_file("short.json", events=step.events)]) as database:
        [launches] = trace_report(database, *traced_runs(database)).launches
    assert launches["short_percent"] == 50.0


def test_collectives_know_what_their_rank_has_done_until_then(
    make_trace: Callable[..., Any], step: Any
) -> None:
    """They come in order of launch, or of start without a recorded launch; the host was late by 80 and by 30 µs."""
    step.events.clear()
    reduced = {"Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, "Group size": 2,
               "dtype": "Float", "Process Group Ranks": "[0, 1]"}  # fmt: skip

    def launched(name: str, launch_us: float, start_us: float, stream: int, **args: Any) -> None:
        step.correlation += 1
        step.host("cuda_runtime", "cudaLaunchKernel", launch_us, 1, 1, {"correlation": step.correlation})
        step.kernel(name, start_us, 10.0, stream=stream, correlation=step.correlation, **args)

    launched("one", 1000, 1010, 7)
    launched("two", 1100, 1110, 7)
    launched("nccl first", 1120, 1300, 20, **reduced)
    launched("nccl second", 1130, 1200, 21, **reduced)
    launched("three", 1240, 1250, 7)
    step.kernel("nccl third", 1125, 10.0, stream=22, **reduced)
    trace = make_trace(step.events)
    found = TraceEvents(trace, extract(trace, 2)).collectives(0)
    assert [(call.start_ns, call.done_ns) for call in found] == [
        (300_000, (30_000, 0, 110_000)),
        (125_000, (20_000, 0, 80_000)),
        (200_000, (20_000, 0, 80_000)),
    ]
