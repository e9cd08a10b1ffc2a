"""Reads the Chrome-trace JSON that the PyTorch profiler (Kineto) writes. No torch here: traces of anybody's run.

Times are in µs, as in the file; `ts` has sub-microsecond decimals. Only complete events (`"ph": "X"`) have a duration
and are kept.
"""

import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from kernelcast.runtime.errors import DataError

DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
HOST_OPERATOR_CATEGORY = "cpu_op"
ANNOTATION_CATEGORY = "user_annotation"
LAUNCH_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime"})

# Kineto's resolution: host events with less self time than this are dispatch, not work.
RESOLUTION_US = 1.0

# A minute of a busy GPU is a few hundred MB. Beyond this a file is more likely a gzip bomb than a trace.
MAX_TRACE_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Event:
    """One complete event. `thread` is a host thread or, for device events, a stream."""

    category: str
    name: str
    thread: str
    start_us: float
    duration_us: float
    args: Mapping[str, Any]

    @property
    def end_us(self) -> float:
        """End of the event, µs on the trace's clock."""
        return self.start_us + self.duration_us


@dataclass(frozen=True, slots=True)
class Trace:
    """A parsed trace: its complete events by start time, and what the file says about devices and ranks.

    Event times count from `base_time_ns` (Unix time).
    """

    events: tuple[Event, ...]
    device_properties: tuple[Mapping[str, Any], ...]
    distributed: Mapping[str, Any]
    base_time_ns: int = 0

    def of_category(self, *categories: str) -> list[Event]:
        """Events of the named categories, by start time."""
        return [event for event in self.events if event.category in categories]


def read_trace(path: Path, *, max_bytes: int = MAX_TRACE_BYTES) -> Trace:
    """Read a trace file, plain or gzip, of at most `max_bytes` unpacked.

    Raises:
        DataError: the file is missing, too large, not JSON, or not a Kineto trace.
    """
    try:
        content = _content(path, max_bytes)
        document = orjson.loads(content)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file, expected a Kineto trace") from None
    except (OSError, EOFError, zlib.error, orjson.JSONDecodeError) as error:
        raise DataError(f"{path}: not readable as JSON or gzip JSON ({error})") from error
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise DataError(f"{path}: no list 'traceEvents' found, expected a Kineto trace")
    events = _complete_events(document["traceEvents"], path)
    properties = _field(document, "deviceProperties", list, [], path)
    return Trace(
        events=tuple(sorted(events, key=lambda e: (e.start_us, -e.duration_us))),
        device_properties=tuple(entry for entry in properties if isinstance(entry, dict)),
        distributed=_field(document, "distributedInfo", dict, {}, path),
        base_time_ns=_field(document, "baseTimeNanoseconds", int, 0, path),
    )


def _content(path: Path, max_bytes: int) -> bytes:
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if is_gzip:
            with gzip.open(file) as unpacked:
                content: bytes = unpacked.read(max_bytes + 1)
        else:
            content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise DataError(f"{path}: more than {max_bytes} bytes of JSON, expected at most that many")
    return content


def _field(document: Mapping[str, Any], name: str, kind: type, default: Any, path: Path) -> Any:
    """A field at the top level; `default` where it is absent or null."""
    value = document.get(name)
    if value is None:
        return default
    if type(value) is not kind:
        raise DataError(f"{path}: {name} is {value!r:.80}, expected JSON that reads as {kind.__name__}")
    return value


def _complete_events(raw_events: list[Any], path: Path) -> Iterator[Event]:
    for raw in raw_events:
        if isinstance(raw, dict) and raw.get("ph") == "X" and "dur" in raw:
            args = raw.get("args")
            yield Event(
                category=str(raw.get("cat", "")),
                name=str(raw.get("name", "")),
                thread=f"{raw.get('pid')}/{raw.get('tid')}",
                start_us=_microseconds(raw, "ts", path),
                duration_us=_microseconds(raw, "dur", path),
                args=args if isinstance(args, dict) else {},
            )


def _microseconds(raw: Mapping[str, Any], name: str, path: Path) -> float:
    value = raw.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise DataError(f"{path}: event {raw.get('name')!r:.80} has {name} {value!r:.80}, expected µs")
