"""Reads the Chrome-trace JSON of the PyTorch profiler (Kineto), without torch.

Times are in µs, as the format defines (`displayTimeUnit` does not change that); `ts` has sub-microsecond decimals.
Time stamps that can only be nanoseconds of Unix time are converted to µs. Events whose time cannot belong to the trace
are left out; `Trace.notes` counts them and repairs of damaged text. Only complete events (`"ph": "X"`) have a duration
and are kept. Their arguments, up to half of a file, are decoded only when needed (arguments.py).
"""

import math
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kernelcast.collector.traces.arguments import divided, id_of, launch_id
from kernelcast.collector.traces.events import (
    ANNOTATION_CATEGORY,
    DEVICE_CATEGORIES,
    HOST_OPERATOR_CATEGORY,
    LAUNCH_CATEGORIES,
    NO_ARGUMENTS,
    NO_ID,
    PROFILERS_STEP,
    SYNC_CATEGORY,
    Events,
    Texts,
    microseconds,
)
from kernelcast.collector.traces.time_order import in_order, unread_kinds
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
UNREAD = "events of a kind that is not read"
_TRUNCATED = "the file is cut off: read up to there"
_KINDS: Mapping[type, str] = {list: "a list", dict: "a table", int: "an integer", str: "a text"}


class _Line(msgspec.Struct, frozen=True, gc=False, rename={
    "category": "cat", "start_us": "ts", "duration_us": "dur", "raw_arguments": "args", "phase": "ph",
}):  # fmt: skip
    """One event as it stands in the file."""

    category: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    start_us: float = math.nan
    duration_us: float = math.nan
    raw_arguments: msgspec.Raw = msgspec.Raw(NO_ARGUMENTS)
    phase: str = ""


class _Document(msgspec.Struct):
    """The parts of a file that are read; optional fields are checked one by one."""

    traceEvents: list[_Line]
    deviceProperties: Any = None
    distributedInfo: Any = None
    baseTimeNanoseconds: Any = None
    cuda_runtime_version: Any = None
    hip_runtime_version: Any = None
    host_name: Any = None
    notes: Counter[str] = msgspec.field(default_factory=Counter, name="")


_LINES_DECODER = msgspec.json.Decoder(list[_Line])
_DECODER = msgspec.json.Decoder(_Document)


@dataclass(frozen=True, slots=True)
class Trace:
    """A parsed trace: its complete events by start time, and the file's data on devices and ranks.

    Event times count from `base_time_ns` (Unix time). Runtime versions are the vendors' numbers (CUDA 12.4: 12040, HIP
    6.4.43483: 60443483), 0 where missing. `notes` list repairs and omissions.
    """

    events: Events
    device_properties: tuple[Mapping[str, Any], ...]
    distributed: Mapping[str, Any]
    base_time_ns: int = 0
    cuda_runtime_version: int = 0
    hip_runtime_version: int = 0
    host_name: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_truncated(self) -> bool:
        """Whether the file ends before the trace does."""
        return _TRUNCATED in self.notes

    def of_category(self, *categories: str) -> Events:
        """Events of the named categories, by start time."""
        return self.events[self.events.are(*categories)]


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
        rest = read_parts(chain(_emptied(start), chunks), kept.take)
        document = _document(rest, path, is_partial=is_partial)
        document.notes.update(kept.notes)
        return _trace(document, path, kept)
    except NotInPartsError:
        content = b"".join(trace_chunks(path, max_bytes=max_bytes, is_partial=is_partial))
        return parse_trace(content, path, is_partial=is_partial)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file, expected a Kineto trace") from None
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from error


def _emptied(chunks: list[bytes]) -> Iterator[bytes]:
    """The chunks in order, each no longer in the list."""
    chunks.reverse()
    while chunks:
        yield chunks.pop()


def parse_trace(content: bytes, path: Path, *, is_partial: bool = False) -> Trace:
    """Parse the unpacked content of a trace file; `path` is for messages.

    Raises:
        DataError: not JSON, or not a Kineto trace.
    """
    return _trace(_document(content, path, is_partial=is_partial), path, _Kept())


_WITH_ARGUMENTS = {HOST_OPERATOR_CATEGORY, ANNOTATION_CATEGORY, SYNC_CATEGORY, *DEVICE_CATEGORIES}


class _Kept:
    """The columns of complete events."""

    def __init__(self) -> None:
        self.notes: Counter[str] = Counter()
        self._times = array("d"), array("d")
        self._numbers = array("i"), array("i"), array("i")
        self._ids = array("q"), array("q"), array("q")
        self._texts: tuple[dict[Any, int], ...] = {}, {}, {NO_ARGUMENTS: 0}

    def take(self, part: bytes) -> None:
        """Add the complete events of a part."""
        notes = Counter[str]()
        if not _is_utf_8(part) or SURROGATE.search(part):
            part, notes = repaired(part)
        lines = _LINES_DECODER.decode(part)
        self.notes.update(notes)
        self.add(lines)

    def add(self, lines: Iterable[_Line]) -> None:
        """Add complete events."""
        # NaN differs from itself: without a duration an event is not complete.
        kept = [line for line in lines if line.phase == "X" and line.duration_us == line.duration_us]
        self._times[0].extend([line.start_us for line in kept])
        self._times[1].extend([line.duration_us for line in kept])
        kinds, places, known = self._texts
        self._numbers[0].extend([kinds.setdefault((line.category, line.name), len(kinds)) for line in kept])
        self._numbers[1].extend([places.setdefault((line.pid, line.tid), len(places)) for line in kept])
        texts: list[int] = []
        ids: tuple[list[Any], ...] = [], [], []
        add_text, add_external, add_sequence, add_correlation = texts.append, *(one.append for one in ids)
        for line in kept:
            text, external_id, sequence = 0, NO_ID, NO_ID
            category = _OLD_CATEGORIES.get(line.category, line.category)
            if category in LAUNCH_CATEGORIES:
                correlation = launch_id(line.raw_arguments)
            elif category in _WITH_ARGUMENTS:
                found, external_id, sequence, correlation = divided(line.raw_arguments, category)
                text = known.setdefault(found, len(known))
            else:
                correlation = NO_ID
            add_text(text)
            add_external(external_id)
            add_sequence(sequence)
            add_correlation(correlation)
        self._numbers[2].extend(texts)
        for column, values in zip(self._ids, ids, strict=True):
            are_whole = set(map(type, values)) == {int} and min(values) >= NO_ID and max(values) < -NO_ID
            column.extend(values if are_whole else map(id_of, values))

    def events(self) -> Events:
        """The events, with the present names of old categories; steps were operators then."""
        columns = (
            np.frombuffer(column, dtype=column.typecode) if column else np.empty(0, dtype=column.typecode)
            for column in (*self._times, *self._numbers, *self._ids)
        )
        kinds, places, arguments = map(list, self._texts)
        if any(category in _OLD_CATEGORIES for category, _ in kinds):
            kinds = [_renamed(*kind) for kind in kinds]
        return Events(Texts(kinds, places, arguments), *columns)


def _renamed(category: str, name: str) -> tuple[str, str]:
    category = _OLD_CATEGORIES.get(category, category)
    if category == HOST_OPERATOR_CATEGORY and name.startswith(PROFILERS_STEP):
        category = ANNOTATION_CATEGORY
    return category, name


def _trace(document: _Document, path: Path, kept: _Kept) -> Trace:
    """The trace of a document; `kept` are the events of earlier parts."""
    notes = document.notes
    kept.add(document.traceEvents)
    document.traceEvents = []
    ordered, odd = in_order(kept.events())
    if odd:
        first = odd[0][0]
        found = f"{first.name!r:.80} (ts {first.start_us!r:.40}, dur {first.duration_us!r:.40})"
        if not len(ordered):
            raise DataError(f"{path}: no event has a time in µs, the first is {found}")
        notes[f"event without a time that can belong to the trace left out, the first {found}"] += sum(
            map(len, odd)
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
        events=ordered,
        device_properties=tuple(entry for entry in properties if isinstance(entry, dict)),
        **fields,
        notes=tuple(f"{count:,} × {note}" if count > 1 else note for note, count in notes.items()),
    )


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
        notes[_TRUNCATED] += 1
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
    found = _Document(list(_lines(document["traceEvents"])))
    for name in _Document.__struct_fields__[1:-1]:
        setattr(found, name, document.get(name))
    return found


def _lines(raw_events: list[Any]) -> Iterator[_Line]:
    """Complete events with fields of any type; events without a time start at NaN."""
    for raw in raw_events:
        if not isinstance(raw, dict) or raw.get("ph") != "X" or "dur" not in raw:
            continue
        arguments = raw.get("args")
        start_us, duration_us = microseconds(raw.get("ts")), microseconds(raw.get("dur"))
        if duration_us != duration_us:
            start_us, duration_us = math.nan, 0.0
        yield _Line(
            category=str(raw.get("cat", "")),
            name=str(raw.get("name", "")),
            pid=str(raw.get("pid")),
            tid=str(raw.get("tid")),
            start_us=start_us,
            duration_us=duration_us,
            raw_arguments=msgspec.Raw(msgspec.json.encode(arguments))
            if arguments
            else msgspec.Raw(NO_ARGUMENTS),
            phase="X",
        )
