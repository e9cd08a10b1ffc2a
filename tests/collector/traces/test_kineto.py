"""Reading Kineto traces: what is kept of a good one, and what is said about a bad one."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kernelcast.collector.traces.arguments import Arguments, arguments_of
from kernelcast.collector.traces.events import Events
from kernelcast.collector.traces.kineto import Trace, read_trace
from kernelcast.runtime import DataError


def written(folder: Path, content: Any) -> Path:
    path = folder / "trace.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def test_complete_events_by_start_time(traces: Path) -> None:
    trace = read_trace(traces / "cpu.json")
    # No metadata, no instant, and not the event that has no duration.
    assert len(trace.events) == 13
    starts = [event.start_us for event in trace.events]
    assert starts == sorted(starts)
    linear = next(e for e in trace.events if e.name == "aten::linear")
    assert (linear.category, linear.thread) == ("cpu_op", "10/10")
    assert (linear.start_us, linear.duration_us, linear.end_us) == (105, 60, 165)
    assert (linear.external_id, arguments_of(linear)) == (1, Arguments())
    assert trace.base_time_ns == 1_760_000_000_000_000_000


def test_an_outer_event_comes_before_the_inner_one_that_starts_with_it(tmp_path: Path) -> None:
    inner = {"ph": "X", "name": "inner", "ts": 1, "dur": 2}
    outer = {"ph": "X", "name": "outer", "ts": 1, "dur": 5}
    trace = read_trace(written(tmp_path, {"traceEvents": [inner, outer]}))
    assert [event.name for event in trace.events] == ["outer", "inner"]
    assert trace.events[0].category == ""


def test_what_the_file_says_about_devices_and_ranks(traces: Path) -> None:
    trace = read_trace(traces / "cuda.json")
    assert trace.device_properties == ({"id": 0, "name": "Example GPU", "numSms": 8},)
    assert trace.distributed["rank"] == 3
    assert [event.name for event in trace.of_category("gpu_memcpy", "cuda_driver")] == [
        "Memcpy HtoD",
        "cuLaunchKernel",
    ]


def test_gzip_is_the_same_trace(traces: Path, tmp_path: Path) -> None:
    plain = traces / "cuda.json"
    packed = written(tmp_path, gzip.compress(plain.read_bytes()))
    trace = read_trace(packed)
    assert trace == read_trace(plain)
    assert trace.events != trace.events[1:]


@pytest.mark.parametrize(
    "document",
    [
        {"traceEvents": []},
        {"traceEvents": [None, 7, "text", {"ph": "X"}, {"dur": 1}]},
        {"traceEvents": [], "deviceProperties": None, "distributedInfo": None, "baseTimeNanoseconds": None},
    ],
)
def test_nothing_in_it(tmp_path: Path, document: object) -> None:
    assert read_trace(written(tmp_path, document)) == Trace(
        events=Events(), device_properties=(), distributed={}
    )


def event(**fields: object) -> dict[str, list[dict[str, object]]]:
    return {"traceEvents": [{"ph": "X", "name": "gemm", "ts": 1, "dur": 1, **fields}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty, expected a Kineto trace"),
        (b"\x00\xff rubbish", "not readable as JSON or gzip JSON"),
        (b'{"traceEvents": [', "not readable as JSON or gzip JSON"),
        (b"[" * 5000, "recursion depth"),
        (b"\x1f\x8b", "not readable as JSON or gzip JSON"),
        ([], "no list 'traceEvents' found, expected a Kineto trace"),
        ({"schema": "1.1.1-chakra", "nodes": []}, "no list 'traceEvents' found, expected a Kineto trace"),
        ({"traceEvents": {}}, "no list 'traceEvents' found, expected a Kineto trace"),
        (event(ts="soon"), "no event has a time in µs, the first is 'gemm' (ts nan, dur 1.0)"),
        (event(ts=None), "no event has a time in µs, the first is 'gemm'"),
        (event(dur=True), "no event has a time in µs, the first is 'gemm'"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, content: object, message: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("packed", [False, True])
def test_a_cut_file_is_refused(traces: Path, tmp_path: Path, kept: float, packed: bool) -> None:
    whole = (traces / "cuda.json").read_bytes()
    whole = gzip.compress(whole) if packed else whole.rstrip()
    with pytest.raises(DataError, match="not readable as JSON or gzip JSON"):
        read_trace(written(tmp_path, whole[: int(len(whole) * kept)]))


def test_damaged_gzip_is_refused(traces: Path, tmp_path: Path) -> None:
    whole = bytearray(gzip.compress((traces / "cuda.json").read_bytes()))
    for position in range(20, len(whole), 7):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        with pytest.raises(DataError, match="not readable as JSON or gzip JSON"):
            read_trace(written(tmp_path, bytes(damaged)))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.json: no such file, expected a Kineto trace"):
        read_trace(tmp_path / "none.json")
    with pytest.raises(DataError, match="is a folder, expected a regular file"):
        read_trace(tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_unpacks_beyond_the_limit_is_refused_unread(tmp_path: Path, packed: bool) -> None:
    content = b" " * 50_000_000
    path = written(tmp_path, gzip.compress(content, 1) if packed else content)
    with pytest.raises(DataError, match="more than 1000000 bytes of JSON, expected at most that many"):
        read_trace(path, max_bytes=1_000_000)


def test_arguments_that_are_no_table_are_left_out(tmp_path: Path) -> None:
    (only,) = read_trace(written(tmp_path, event(args=["x"]))).events
    assert arguments_of(only) == Arguments()


MICROSECONDS = [1_712_195_495_519_689.5 + place for place in range(3)]
NANOSECONDS = [start * 1e3 for start in MICROSECONDS]


@pytest.mark.parametrize("scale", [1, 1000])
def test_time_stamps_that_can_only_be_nanoseconds_are_of_all_events(tmp_path: Path, scale: int) -> None:
    events = [{"ph": "X", "name": "e", "ts": start * scale, "dur": 10 * scale} for start in MICROSECONDS]
    trace = read_trace(written(tmp_path, {"traceEvents": events}))
    assert [event.start_us for event in trace.events] == pytest.approx(MICROSECONDS, abs=1)
    assert {event.duration_us for event in trace.events} == {10}


@pytest.mark.parametrize(
    ("starts", "odd"),
    [
        (MICROSECONDS, 9.3e18),
        (MICROSECONDS, -9.3e18),
        (MICROSECONDS, None),
        (NANOSECONDS, 110),
        (NANOSECONDS, 1e30),
        (MICROSECONDS[:1], 9.3e18),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_an_event_with_a_time_stamp_of_another_clock_is_left_out_and_counted(
    tmp_path: Path, starts: list[float], odd: float | None, place: int
) -> None:
    events = [{"ph": "X", "name": "good", "ts": start, "dur": 10} for start in starts]
    events.insert(place, {"ph": "X", "name": "odd", "ts": odd, "dur": 10})
    trace = read_trace(written(tmp_path, {"traceEvents": events}))
    assert [event.name for event in trace.events] == ["good"] * len(starts)
    [note] = trace.notes
    assert note.startswith("event without a time that can belong to the trace left out, the first 'odd'")


@pytest.mark.parametrize("days", [-17, 17])
def test_a_plausible_date_far_from_all_others_is_left_out(tmp_path: Path, days: int) -> None:
    starts = [1_712_195_495_519_689.0 + 40 * place for place in range(400)]
    events = [{"ph": "X", "name": "good", "ts": start, "dur": 10} for start in starts]
    early = [
        {"ph": "X", "name": "odd", "ts": starts[0] + days * 86400e6 + place, "dur": 10} for place in range(2)
    ]
    trace = read_trace(written(tmp_path, {"traceEvents": [*early, *events]}))
    assert [event.start_us for event in trace.events] == starts
    assert trace.notes[0].startswith("2 × event without a time")


@pytest.mark.parametrize("odd", [{"dur": -5}, {"dur": 500e6}, {"ts": 84 * 365.25 * 86400e6}])
def test_one_bad_event_decides_nothing_in_a_small_trace(tmp_path: Path, odd: dict[str, float]) -> None:
    events = [{"ph": "X", "cat": "kernel", "name": "good", "ts": 100 + place, "dur": 1} for place in range(5)]
    bad = {"ph": "X", "cat": "kernel", "name": "odd", "ts": 102, "dur": 1} | odd
    trace = read_trace(written(tmp_path, {"traceEvents": [*events, bad]}))
    assert [event.name for event in trace.events] == ["good"] * 5
    [note] = trace.notes
    assert "event without a time that can belong to the trace left out, the first 'odd'" in note


def test_kernels_that_no_device_runs_are_left_out_and_counted(tmp_path: Path) -> None:
    usual = {"ph": "X", "cat": "kernel", "name": "good", "pid": 0, "tid": 7, "dur": 8}
    good = [usual | {"ts": 100 + 10 * place} for place in range(50)]
    # It would overlap forty kernels of its own stream; a collective that waits is possible, and so is a last kernel.
    odd = usual | {"name": "odd", "ts": 199, "dur": 50e6}
    waiting = usual | {"name": "ncclDevKernel_AllReduce", "tid": 20, "ts": 205, "dur": 20e6}
    last = usual | {"name": "last", "ts": 600, "dur": 30e3}
    trace = read_trace(written(tmp_path, {"traceEvents": [*good, odd, waiting, last]}))
    assert {event.name for event in trace.events} == {"good", waiting["name"], "last"}
    [note] = trace.notes
    assert "the first 'odd'" in note
    two = read_trace(
        written(tmp_path, {"traceEvents": [*good[:3], *[usual | {"ts": 104, "dur": 500e6}] * 2]})
    )
    assert (len(two.events), two.notes[0][:3]) == (3, "2 ×")


def test_kinds_that_are_not_read_are_counted(tmp_path: Path) -> None:
    known = [{"ph": "X", "cat": kind, "name": "x", "ts": 1, "dur": 1}
             for kind in ("kernel", "mtia_ccp_events", "xpu_runtime", "python_function", "overhead")]  # fmt: skip
    other = [{"ph": "X", "cat": "npu_events", "name": "x", "ts": 1, "dur": 1}] * 1200
    assert read_trace(written(tmp_path, {"traceEvents": known})).notes == ()
    assert read_trace(written(tmp_path, {"traceEvents": known + other})).notes == (
        "1,200 events of a kind that is not read: npu_events",
    )


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"distributedInfo": 3}, "distributedInfo ignored: found 3, expected a table"),
        ({"deviceProperties": {}}, "deviceProperties ignored: found {}, expected a list"),
        ({"baseTimeNanoseconds": "x"}, "baseTimeNanoseconds ignored: found 'x', expected an integer"),
        ({"hip_runtime_version": "7.0"}, "hip_runtime_version ignored: found '7.0', expected an integer"),
    ],
)
def test_a_field_of_another_type_is_missing_with_a_note(
    tmp_path: Path, fields: dict[str, object], note: str
) -> None:
    trace = read_trace(written(tmp_path, event() | fields))
    assert (len(trace.events), trace.notes) == (1, (note,))


def test_a_version_may_be_a_text(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, event() | {"hip_runtime_version": "60443483"}))
    assert (trace.hip_runtime_version, trace.notes) == (60443483, ())


GOOD = (
    b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2, "args": {"a": "%s"}}]}'
)


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (GOOD % b"x\xffy", "byte that is not UTF-8"),
        (GOOD % b"line\nline", "control character in a text"),
        (GOOD % rb"C:\Users\model", "backslash that escapes nothing"),
        (GOOD % rb"\q", "backslash that escapes nothing"),
        (GOOD.replace(b'"%s"', b"-Infinity"), "number that JSON does not have"),
        (GOOD.replace(b'"%s"', b"NaN"), "number that JSON does not have"),
        (b"\xef\xbb\xbf" + GOOD % b"x", "byte order mark"),
    ],
)
def test_damaged_text_is_repaired_and_counted(tmp_path: Path, content: bytes, note: str) -> None:
    trace = read_trace(written(tmp_path, content))
    assert [(event.name, event.start_us) for event in trace.events] == [("gemm", 1)]
    assert note in trace.notes[0]


@pytest.mark.parametrize("largest", [1 << 20, 1])  # whole, and in parts
def test_half_of_a_surrogate_pair_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    monkeypatch.setattr("kernelcast.collector.traces.kineto._LARGEST_WHOLE_BYTES", largest)
    monkeypatch.setattr("kernelcast.collector.traces.trace_text._CHUNK_BYTES", 200)
    names = [rb"\ud83d\ude00", rb"a\ud83db", rb"\udc00", rb"\\ud800", *[b"gemm"] * 20]
    lines = b",".join(GOOD[17:-2].replace(b"gemm", name) % b"x" for name in names)
    trace = read_trace(written(tmp_path, b'{"traceEvents": [' + lines + b"]}"))
    assert [event.name for event in trace.events][:4] == ["\U0001f600", "a\ufffdb", "\ufffd", "\\ud800"]
    assert len(trace.events) == 24
    assert trace.notes == ("2 × half of a surrogate pair",)


def test_a_text_that_looks_like_a_bad_number_stays(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, b"\xef\xbb\xbf" + GOOD.replace(b"gemm", b"NaN Infinity")))
    assert trace.events[0].name == "NaN Infinity"


def test_the_array_form(tmp_path: Path) -> None:
    events = [{"ph": "X", "name": "gemm", "ts": 1, "dur": 1}, {"ph": "M", "name": "process_name"}]
    assert [event.name for event in read_trace(written(tmp_path, events)).events] == ["gemm"]


def test_categories_of_old_profilers_are_todays(tmp_path: Path) -> None:
    names = {
        "Operator": "aten::mm",
        "Kernel": "gemm",
        "Memcpy": "copy",
        "Memset": "fill",
        "Runtime": "launch",
    }
    events = [
        {"ph": "X", "cat": category, "name": name, "ts": place, "dur": 1}
        for place, (category, name) in enumerate([*names.items(), ("Operator", "ProfilerStep#5")])
    ]
    trace = read_trace(written(tmp_path, {"traceEvents": events}))
    assert [(event.category, event.name) for event in trace.events] == [
        ("cpu_op", "aten::mm"), ("kernel", "gemm"), ("gpu_memcpy", "copy"), ("gpu_memset", "fill"),
        ("cuda_runtime", "launch"), ("user_annotation", "ProfilerStep#5"),
    ]  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
def test_a_cut_file_is_read_up_to_the_break_where_that_is_asked_for(tmp_path: Path, packed: bool) -> None:
    events = [{"ph": "X", "name": f"e{n}", "ts": n, "dur": 1, "args": {"n": {}}} for n in range(50)]
    whole = json.dumps({"deviceProperties": [], "traceEvents": events}).encode()
    content = gzip.compress(whole) if packed else whole
    path = written(tmp_path, content[: len(content) * 2 // 3])
    with pytest.raises(DataError, match="not readable as JSON or gzip JSON"):
        read_trace(path)
    trace = read_trace(path, is_partial=True)
    names = [event.name for event in trace.events]
    assert 5 < len(names) < 50
    assert names == [f"e{n}" for n in range(len(names))]
    assert trace.notes == ("the file is cut off: read up to there",)
    path.write_bytes(content)
    assert read_trace(path, is_partial=True) == read_trace(path)
    assert len(read_trace(path).events) == 50


def test_a_large_file_is_the_same_trace_in_pieces(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.loads((traces / "cuda.json").read_text())
    document["traceEvents"] += [{"ph": "X", "name": "}, {", "ts": 5, "dur": 1, "args": {"a": [{}, {}]}}] * 40
    path = written(tmp_path, document)
    whole = read_trace(path)
    monkeypatch.setattr("kernelcast.collector.traces.kineto._LARGEST_WHOLE_BYTES", 1)
    # Not by reading all of it again, as what cannot be cut is.
    monkeypatch.setattr("kernelcast.collector.traces.kineto.NotInPartsError", KeyboardInterrupt)
    for size in (100, 1000, 1 << 20):
        monkeypatch.setattr("kernelcast.collector.traces.trace_text._CHUNK_BYTES", size)
        pieces = read_trace(path)
        assert pieces.device_properties == whole.device_properties
        assert [(e.name, e.category, e.start_us, arguments_of(e)) for e in pieces.events] == [
            (e.name, e.category, e.start_us, arguments_of(e)) for e in whole.events
        ]
