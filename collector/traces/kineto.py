"""Reads the Chrome-trace JSON that the PyTorch profiler (Kineto) writes. Does not need torch.

Times are in µs, as the format defines (`displayTimeUnit` does not change that); `ts` has sub-microsecond decimals.
Files whose time stamps can only be nanoseconds of Unix time are converted to µs; a file with a single stamp of another
clock is refused. Only complete events (`"ph": "X"`) have a duration and are kept. Their arguments, up to half of a
file, are parsed only when needed (arguments.py).
"""

import math
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from kernelcast.collector.traces.trace_file import MAX_TRACE_BYTES, trace_bytes
from kernelcast.runtime.errors import DataError

DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
HOST_OPERATOR_CATEGORY = "cpu_op"
ANNOTATION_CATEGORY = "user_annotation"
LAUNCH_CATEGORIES = frozenset(
    {"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "runtime", "driver"}
)

# Kineto's resolution: host events with less self time than this are dispatch, not work.
RESOLUTION_US = 1.0

# Unix time passed 1e17 µs never, and 1e17 ns in 1973: larger stamps are nanoseconds.
_LARGEST_US = 1e17

_NO_ARGUMENTS = msgspec.Raw(b"{}")


class Event(msgspec.Struct, frozen=True, gc=False, rename={
    "category": "cat", "start_us": "ts", "duration_us": "dur", "raw_arguments": "args", "phase": "ph",
}):  # fmt: skip
    """One complete event, decoded as it stands in the file."""

    category: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    start_us: float = math.nan
    duration_us: float = math.nan
    raw_arguments: msgspec.Raw = _NO_ARGUMENTS
    phase: str = ""

    @property
    def thread(self) -> str:
        """The host thread or, for device events, the stream."""
        return f"{self.pid}/{self.tid}"

    @property
    def end_us(self) -> float:
        """End of the event, µs on the trace's clock."""
        return self.start_us + self.duration_us

    def lasting(self, duration_us: float) -> "Event":
        """The same event with another duration."""
        return msgspec.structs.replace(self, duration_us=duration_us)


class _Document(msgspec.Struct):
    """What is read of a file; fields that only some files have are checked one by one."""

    traceEvents: list[Event]
    deviceProperties: Any = None
    distributedInfo: Any = None
    baseTimeNanoseconds: Any = None
    cuda_runtime_version: Any = None
    hip_runtime_version: Any = None
    record_shapes: Any = None


_DECODER = msgspec.json.Decoder(_Document)


@dataclass(frozen=True, slots=True)
class Trace:
    """A parsed trace: its complete events by start time, and what the file says about devices and ranks.

    Event times count from `base_time_ns` (Unix time). The runtime versions are as the makers count: CUDA 12.4 is 12040,
    HIP 6.4.43483 is 60443483; 0 where the file does not say.
    """

    events: tuple[Event, ...]
    device_properties: tuple[Mapping[str, Any], ...]
    distributed: Mapping[str, Any]
    base_time_ns: int = 0
    cuda_runtime_version: int = 0
    hip_runtime_version: int = 0

    def of_category(self, *categories: str) -> list[Event]:
        """Events of the named categories, by start time."""
        wanted = frozenset(categories)
        return [event for event in self.events if event.category in wanted]


def read_trace(path: Path, *, max_bytes: int = MAX_TRACE_BYTES) -> Trace:
    """Read a trace file, plain or gzip, of at most `max_bytes` unpacked.

    Raises:
        DataError: the file is missing, too large, not JSON, or not a Kineto trace.
    """
    try:
        return parse_trace(trace_bytes(path, max_bytes=max_bytes), path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file, expected a Kineto trace") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not readable as JSON or gzip JSON ({error})") from error


def parse_trace(content: bytes, path: Path) -> Trace:
    """Parse the unpacked content of a trace file; `path` is for messages.

    Raises:
        DataError: not JSON, or not a Kineto trace.
    """
    try:
        document = _decoded(content, path)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not readable as JSON or gzip JSON ({error})") from error
    # What is not a number differs from itself: no duration, no complete event.
    events = [e for e in document.traceEvents if e.phase == "X" and e.duration_us == e.duration_us]
    if without := next((event for event in events if event.start_us != event.start_us), None):
        raise _no_time(path, without.name, "ts", None)
    properties = _field(document, "deviceProperties", list, [], path)
    return Trace(
        events=tuple(_in_order(events, path)) if events else (),
        device_properties=tuple(entry for entry in properties if isinstance(entry, dict)),
        distributed=_field(document, "distributedInfo", dict, {}, path),
        base_time_ns=_field(document, "baseTimeNanoseconds", int, 0, path),
        cuda_runtime_version=_field(document, "cuda_runtime_version", int, 0, path),
        hip_runtime_version=_field(document, "hip_runtime_version", int, 0, path),
    )


def _in_order(events: list[Event], path: Path) -> list[Event]:
    """By start, in µs; of those that start together the longest, which holds the others, first.

    The middle event decides the unit. The events are sorted, so checking the first and the last one is enough.
    """
    events.sort(key=attrgetter("duration_us"), reverse=True)
    for event in (events[0], events[-1]):
        if abs(event.duration_us) > _LARGEST_US:
            raise _no_time(path, event.name, "dur", event.duration_us, f"µs, at most {_LARGEST_US:g}")
    events.sort(key=attrgetter("start_us"))
    if events[(len(events) - 1) // 2].start_us <= _LARGEST_US:
        for event in (events[0], events[-1]):
            if abs(event.start_us) > _LARGEST_US:
                raise _no_time(
                    path, event.name, "ts", event.start_us, "µs of the clock that other events have"
                )
        return events
    for event in (events[0], events[-1]):
        if not _LARGEST_US < event.start_us <= _LARGEST_US * 1e3:
            raise _no_time(path, event.name, "ts", event.start_us, "ns of Unix time, as other events have")
    return [
        msgspec.structs.replace(event, start_us=event.start_us / 1e3, duration_us=event.duration_us / 1e3)
        for event in events
    ]


def _field(document: _Document, name: str, kind: type, default: Any, path: Path) -> Any:
    """A field at the top level; `default` where it is absent or null."""
    value = getattr(document, name)
    if value is None:
        return default
    if type(value) is not kind:
        raise DataError(f"{path}: {name} is {value!r:.80}, expected JSON that reads as {kind.__name__}")
    return value


def _decoded(content: bytes, path: Path) -> _Document:
    try:
        return _DECODER.decode(content)
    except msgspec.ValidationError:  # JSON, but something in it has another type: slower, and with leniency
        document = msgspec.json.decode(content)
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise DataError(f"{path}: no list 'traceEvents' found, expected a Kineto trace")
    found = _Document([_event(raw, path) for raw in document["traceEvents"] if _is_complete(raw)])
    for name in _Document.__struct_fields__[1:]:
        setattr(found, name, document.get(name))
    return found


def _is_complete(raw: object) -> bool:
    return isinstance(raw, dict) and raw.get("ph") == "X" and "dur" in raw


def _event(raw: Mapping[str, Any], path: Path) -> Event:
    arguments = raw.get("args")
    return Event(
        category=str(raw.get("cat", "")),
        name=str(raw.get("name", "")),
        pid=str(raw.get("pid")),
        tid=str(raw.get("tid")),
        start_us=_microseconds(raw, "ts", path),
        duration_us=_microseconds(raw, "dur", path),
        raw_arguments=msgspec.Raw(msgspec.json.encode(arguments)) if arguments else _NO_ARGUMENTS,
        phase="X",
    )


def _microseconds(raw: Mapping[str, Any], name: str, path: Path) -> float:
    value = raw.get(name)
    # A whole number of hundreds of digits is none of a clock, and too large for a float.
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        return float(value)
    raise _no_time(path, raw.get("name"), name, value)


def _no_time(path: Path, event: object, name: str, value: object, expected: str = "µs") -> DataError:
    return DataError(f"{path}: event {event!r:.80} has {name} {value!r:.80}, expected {expected}")
