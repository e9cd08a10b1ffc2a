"""Reads the Chrome-trace JSON of the PyTorch profiler (Kineto), without torch.

Times are in µs, as the format defines (`displayTimeUnit` does not change that); `ts` has sub-microsecond decimals.
Time stamps that can only be nanoseconds of Unix time are converted to µs. Events whose time cannot belong to the trace
are left out; `Trace.notes` counts them and repairs of damaged text. Only complete events (`"ph": "X"`) have a duration
and are kept. Their arguments, up to half of a file, are decoded only when needed (arguments.py).
"""

import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from kernelcast.collector.traces.arguments import trimmed
from kernelcast.collector.traces.events import (
    ANNOTATION_CATEGORY,
    HOST_OPERATOR_CATEGORY,
    NO_ARGUMENTS,
    Event,
    in_order,
    microseconds,
    unread_kinds,
)
from kernelcast.collector.traces.trace_text import (
    MAX_TRACE_BYTES,
    SURROGATE,
    NotInPartsError,
    closed_document,
    read_parts,
    repaired,
    trace_chunks,
)
from kernelcast.runtime.errors import DataError

# Kineto's resolution: host events with less self time are dispatch, not work.
RESOLUTION_US = 1.0

# Larger files are read in parts, so that the whole text is never in memory.
_LARGEST_WHOLE_BYTES = 64 << 20

# Categories of the profilers of torch 1.8 and 1.9, and their present names.
_OLD_CATEGORIES = {
    "Operator": HOST_OPERATOR_CATEGORY, "Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset",
    "Runtime": "cuda_runtime", "PythonFunction": "python_function",
}  # fmt: skip
_STEP = "ProfilerStep#"
UNREAD = "events of a kind that is not read"
_KINDS: Mapping[type, str] = {list: "a list", dict: "a table", int: "an integer", str: "a text"}


class _Document(msgspec.Struct):
    """The parts of a file that are read; optional fields are checked one by one."""

    traceEvents: list[Event]
    deviceProperties: Any = None
    distributedInfo: Any = None
    baseTimeNanoseconds: Any = None
    cuda_runtime_version: Any = None
    hip_runtime_version: Any = None
    host_name: Any = None
    notes: Counter[str] = msgspec.field(default_factory=Counter, name="")


_EVENTS_DECODER = msgspec.json.Decoder(list[Event])
_DECODER = msgspec.json.Decoder(_Document)


@dataclass(frozen=True, slots=True)
class Trace:
    """A parsed trace: its complete events by start time, and the file's data on devices and ranks.

    Event times count from `base_time_ns` (Unix time). Runtime versions are the vendors' numbers (CUDA 12.4: 12040, HIP
    6.4.43483: 60443483), 0 where missing. `notes` list repairs and omissions.
    """

    events: tuple[Event, ...]
    device_properties: tuple[Mapping[str, Any], ...]
    distributed: Mapping[str, Any]
    base_time_ns: int = 0
    cuda_runtime_version: int = 0
    hip_runtime_version: int = 0
    host_name: str = ""
    notes: tuple[str, ...] = ()

    def of_category(self, *categories: str) -> list[Event]:
        """Events of the named categories, by start time."""
        wanted = frozenset(categories)
        return [event for event in self.events if event.category in wanted]


def read_trace(path: Path, *, max_bytes: int = MAX_TRACE_BYTES, is_partial: bool = False) -> Trace:
    """Read a trace file, plain or gzip, of at most `max_bytes` unpacked; with `is_partial` a truncated one too.

    Raises:
        DataError: the file is missing, too large, not JSON, or not a Kineto trace.
    """
    chunks = trace_chunks(path, max_bytes=max_bytes, is_partial=is_partial)
    start: list[bytes] = []
    try:
        while sum(map(len, start)) < _LARGEST_WHOLE_BYTES and (chunk := next(chunks, b"")):
            start.append(chunk)
        if sum(map(len, start)) < _LARGEST_WHOLE_BYTES:
            return parse_trace(b"".join(start), path, is_partial=is_partial)
        kept = _Kept()
        rest = read_parts(chain(start, chunks), kept.take)
        document = _document(rest, path, is_partial=is_partial)
        document.notes.update(kept.notes)
        return _trace(document, path, kept.events)
    except NotInPartsError:
        content = b"".join(trace_chunks(path, max_bytes=max_bytes, is_partial=is_partial))
        return parse_trace(content, path, is_partial=is_partial)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file, expected a Kineto trace") from None
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from error


def parse_trace(content: bytes, path: Path, *, is_partial: bool = False) -> Trace:
    """Parse the unpacked content of a trace file; `path` is for messages.

    Raises:
        DataError: not JSON, or not a Kineto trace.
    """
    return _trace(_document(content, path, is_partial=is_partial), path, [])


class _Kept:
    """Complete events of parts; they neither keep the text of their part in memory nor hold equal texts twice."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.notes: Counter[str] = Counter()
        self._texts: dict[object, Any] = {}

    def take(self, part: bytes) -> None:
        """Add the complete events of a part."""
        texts, put = self._texts, msgspec.structs.force_setattr
        notes = Counter[str]()
        if not _is_utf_8(part) or SURROGATE.search(part):
            part, notes = repaired(part)
        events = _EVENTS_DECODER.decode(part)
        self.notes.update(notes)
        for event in events:
            if event.phase != "X":
                continue
            for name in ("category", "name", "pid", "tid", "phase"):
                value = getattr(event, name)
                put(event, name, texts.setdefault(value, value))
            is_function = event.category == "python_function"
            put(event, "raw_arguments", NO_ARGUMENTS if is_function else trimmed(event))
            self.events.append(event)


def _trace(document: _Document, path: Path, before: list[Event]) -> Trace:
    """The trace of a document; `before` are the events of earlier parts."""
    notes = document.notes
    # NaN differs from itself: without a duration an event is not complete.
    events = [
        e for e in chain(before, document.traceEvents) if e.phase == "X" and e.duration_us == e.duration_us
    ]
    if events and any(event.category in _OLD_CATEGORIES for event in events):
        events = [_renamed(event) for event in events]
    ordered, dropped = in_order(events)
    if dropped:
        first = dropped[0]
        found = f"{first.name!r:.80} (ts {first.start_us!r:.40}, dur {first.duration_us!r:.40})"
        if not ordered:
            raise DataError(f"{path}: no event has a time in µs, the first is {found}")
        notes[f"event without a time that can belong to the trace left out, the first {found}"] += len(
            dropped
        )
    for kind, count in unread_kinds(ordered).items():
        notes[f"{count:,} {UNREAD}: {kind[:80]}"] += 1
    properties = _field(document, "deviceProperties", list, [])
    fields = {
        "distributed": _field(document, "distributedInfo", dict, {}),
        "base_time_ns": _field(document, "baseTimeNanoseconds", int, 0),
        "cuda_runtime_version": _field(document, "cuda_runtime_version", int, 0),
        "hip_runtime_version": _field(document, "hip_runtime_version", int, 0),
        "host_name": _field(document, "host_name", str, ""),
    }
    return Trace(
        events=tuple(ordered),
        device_properties=tuple(entry for entry in properties if isinstance(entry, dict)),
        **fields,
        notes=tuple(f"{count:,} × {note}" if count > 1 else note for note, count in notes.items()),
    )


def _renamed(event: Event) -> Event:
    """An event of an old profiler with its present category; steps were operators then."""
    category = _OLD_CATEGORIES.get(event.category, event.category)
    if category == HOST_OPERATOR_CATEGORY and event.name.startswith(_STEP):
        category = ANNOTATION_CATEGORY
    return msgspec.structs.replace(event, category=category)


def _field(document: _Document, name: str, kind: type, default: Any) -> Any:
    """A field at the top level; `default` where it is absent, null or, with a note, of another type."""
    value = getattr(document, name)
    if kind is int and isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    if type(value) is kind:
        return value
    if value is not None:
        document.notes[f"{name} ignored: found {value!r:.80}, expected {_KINDS[kind]}"] += 1
    return default


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = getattr(error, "strerror", None) or error
    return DataError(f"{path}: not readable as JSON or gzip JSON ({reason})")


def _document(content: bytes, path: Path, *, is_partial: bool) -> _Document:
    """The decoded content, repaired where it is not valid JSON, and closed where it is truncated and `is_partial`."""
    first: Exception = ValueError("bytes that are not UTF-8")
    try:
        if _is_utf_8(content):
            return _decoded(content, path)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        first = error
    text, notes = repaired(content)
    if is_partial and (closed := closed_document(text, lambda cut: _decoded(cut, path))) is not None:
        text = closed
        notes["the file is cut off: read up to there"] += 1
    if not notes:
        raise _unreadable(path, first) from first
    try:
        found = _decoded(text, path)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise _unreadable(path, first) from first
    found.notes.update(notes)
    return found


def _is_utf_8(content: bytes) -> bool:
    """Checked separately, because arguments are decoded later or never."""
    try:
        return content.isascii() or bool(content.decode())
    except UnicodeDecodeError:
        return False


def _decoded(content: bytes, path: Path) -> _Document:
    try:
        return _DECODER.decode(content)
    except msgspec.ValidationError:  # valid JSON with values of other types: decoded leniently, and slower
        document = msgspec.json.decode(content)
    if isinstance(document, list) and any(isinstance(raw, dict) and "ph" in raw for raw in document):
        document = {"traceEvents": document}  # the array form of Chrome's format
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise DataError(f"{path}: no list 'traceEvents' found, expected a Kineto trace")
    found = _Document(list(_events(document["traceEvents"], path)))
    for name in _Document.__struct_fields__[1:-1]:
        setattr(found, name, document.get(name))
    return found


def _events(raw_events: list[Any], path: Path) -> Iterator[Event]:
    """Complete events with fields of any type; events without a time start at NaN."""
    for raw in raw_events:
        if not isinstance(raw, dict) or raw.get("ph") != "X" or "dur" not in raw:
            continue
        arguments = raw.get("args")
        start_us, duration_us = microseconds(raw.get("ts")), microseconds(raw.get("dur"))
        if duration_us != duration_us:
            start_us, duration_us = math.nan, 0.0
        yield Event(
            category=str(raw.get("cat", "")),
            name=str(raw.get("name", "")),
            pid=str(raw.get("pid")),
            tid=str(raw.get("tid")),
            start_us=start_us,
            duration_us=duration_us,
            raw_arguments=msgspec.Raw(msgspec.json.encode(arguments)) if arguments else NO_ARGUMENTS,
            phase="X",
        )
