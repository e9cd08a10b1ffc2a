"""Reads the Chrome-trace JSON that the PyTorch profiler (Kineto) writes. No torch here: traces of anybody's run.

Times are in µs, as in the file; `ts` has sub-microsecond decimals. Only complete events (`"ph": "X"`) have a duration
and are kept.
"""

import gzip
from collections.abc import Iterable, Mapping
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


def read_trace(path: Path) -> Trace:
    """Read a trace file, plain or gzip.

    Raises:
        DataError: the file is missing, not JSON, or not a Kineto trace.
    """
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        document = orjson.loads(raw)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file, expected a Kineto trace") from None
    except (OSError, EOFError, orjson.JSONDecodeError) as error:
        raise DataError(f"{path}: not readable as JSON or gzip JSON ({error})") from error
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise DataError(f"{path}: no list 'traceEvents' found, expected a Kineto trace")
    return Trace(
        events=tuple(
            sorted(_complete_events(document["traceEvents"]), key=lambda e: (e.start_us, -e.duration_us))
        ),
        device_properties=tuple(document.get("deviceProperties") or ()),
        distributed=document.get("distributedInfo") or {},
        base_time_ns=int(document.get("baseTimeNanoseconds") or 0),
    )


def _complete_events(raw_events: Iterable[Any]) -> Iterable[Event]:
    for raw in raw_events:
        if isinstance(raw, dict) and raw.get("ph") == "X" and "dur" in raw:
            yield Event(
                category=str(raw.get("cat", "")),
                name=str(raw.get("name", "")),
                thread=f"{raw.get('pid')}/{raw.get('tid')}",
                start_us=float(raw["ts"]),
                duration_us=float(raw["dur"]),
                args=raw.get("args") or {},
            )
