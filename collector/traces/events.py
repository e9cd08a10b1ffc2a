"""Events of a trace, and their order of time in µs, without events whose times cannot belong to the trace."""

import math
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise, zip_longest
from operator import attrgetter
from statistics import median_low
from typing import Any

import msgspec

DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events", "hpu_op"})
HOST_OPERATOR_CATEGORY = "cpu_op"
ANNOTATION_CATEGORY = "user_annotation"
LAUNCH_CATEGORIES = frozenset(
    {"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "runtime", "driver", "xpu_runtime", "xpu_driver",
     "mtia_runtime", "privateuse1_runtime", "privateuse1_driver"}
)  # fmt: skip

# Kinds that Kineto writes and that hold no work of their own, or none that is read.
_OTHER_CATEGORIES = frozenset(
    {"Trace", "python_function", "gpu_user_annotation", "overhead", "cuda_sync", "cpu_instant_event", "ac2g", "async",
     "external_correlation", "fwdbwd", "cuda_profiler_range", "gpu_pm_counter", ""}
)  # fmt: skip

NO_ARGUMENTS = msgspec.Raw(b"{}")

# Unix time in µs is below 1e17; in ns it exceeded 1e17 in 1973: larger stamps are nanoseconds.
_LARGEST_US = 1e17

# A profiler records without pause. A few events separated from all others by more belong to another time.
_LONGEST_PAUSE_US = 600e6
_FEWEST_EVENTS = 3
_FEW = 100  # at most one event in a hundred, or one
# No event lasts longer than the recording, from the first start to the last one, by more than this.
_LONGEST_BEYOND_US = 60e6
_LONGEST_KERNEL_US = 100e6
_UNUSUAL, _LONG_US = 1000, 10e3


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
    raw_arguments: msgspec.Raw = NO_ARGUMENTS
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


def microseconds(value: Any) -> float:
    """A time as written; NaN where it is no number, or out of range."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        return float(value)
    return math.nan


def in_order(events: list[Event]) -> tuple[list[Event], list[Event]]:
    """Events by start in µs (of equal starts longest first), and events left out; the middle event sets the unit."""
    timed = [event for event in events if event.start_us == event.start_us]
    odd = [event for event in events if event.start_us != event.start_us] if len(timed) < len(events) else []
    if not timed:
        return [], odd
    timed.sort(key=attrgetter("start_us"))
    is_nanoseconds = timed[(len(timed) - 1) // 2].start_us > _LARGEST_US
    smallest, largest = (_LARGEST_US, _LARGEST_US * 1e3) if is_nanoseconds else (-_LARGEST_US, _LARGEST_US)
    if timed[0].start_us < smallest or timed[-1].start_us > largest:
        odd += [event for event in timed if not smallest <= event.start_us <= largest]
        timed = [event for event in timed if smallest <= event.start_us <= largest]
    if not all(0 <= event.duration_us <= _LARGEST_US for event in timed):
        odd += [event for event in timed if not 0 <= event.duration_us <= _LARGEST_US]
        timed = [event for event in timed if 0 <= event.duration_us <= _LARGEST_US]
    if is_nanoseconds:
        timed = [
            msgspec.structs.replace(event, start_us=event.start_us / 1e3, duration_us=event.duration_us / 1e3)
            for event in timed
        ]
    first, end = _main_part(timed)
    odd += timed[:first] + timed[end:]
    kept = timed[first:end]
    if impossible := _impossible(kept):
        odd += [event for event in kept if id(event) in impossible]
        kept = [event for event in kept if id(event) not in impossible]
    if len(kept) >= _FEWEST_EVENTS:
        longest_us = kept[-1].start_us - kept[0].start_us + _LONGEST_BEYOND_US
        too_long = [event for event in kept if event.duration_us > longest_us]
        if 0 < len(too_long) <= max(1, len(kept) // _FEW):
            odd += too_long
            kept = [event for event in kept if event.duration_us <= longest_us]
    return _longest_first(kept), odd


def unread_kinds(events: Iterable[Event]) -> Counter[str]:
    """Numbers of events by kind, of kinds that nothing here reads."""
    counts = Counter(event.category for event in events)
    read = {
        HOST_OPERATOR_CATEGORY,
        ANNOTATION_CATEGORY,
        *DEVICE_CATEGORIES,
        *LAUNCH_CATEGORIES,
        *_OTHER_CATEGORIES,
    }
    return Counter({kind: count for kind, count in counts.items() if kind not in read})


def _impossible(events: Iterable[Event]) -> set[int]:
    """Ids of device events that no device runs: longer than `_LONGEST_KERNEL_US`, or a thousand times as long as is
    usual on their stream and still running in the middle when its next one starts. Collectives may wait long.
    """
    streams: dict[object, list[Event]] = {}
    for event in events:
        if event.category in DEVICE_CATEGORIES:
            streams.setdefault((event.pid, event.tid), []).append(event)
    found = set()
    for stream in streams.values():
        usual_us = median_low(event.duration_us for event in stream)
        least_us = max(_UNUSUAL * usual_us, _LONG_US)
        for event, after in zip_longest(stream, stream[1:]):
            is_overrun = after is not None and after.start_us < event.start_us + event.duration_us / 2
            is_long = event.duration_us > _LONGEST_KERNEL_US or (is_overrun and event.duration_us > least_us)
            if is_long and "ccl" not in event.name.lower():
                found.add(id(event))
    return found


def _main_part(events: list[Event]) -> tuple[int, int]:
    """Start and end index without a few events far from all others; `events` are sorted by start."""
    count = len(events)
    if count < _FEWEST_EVENTS:
        return 0, count
    few = max(1, count // _FEW)
    first = max(
        (i + 1 for i in range(few) if events[i + 1].start_us - events[i].start_us > _LONGEST_PAUSE_US),
        default=0,
    )
    end = min(
        (
            i
            for i in range(count - few, count)
            if events[i].start_us - events[i - 1].start_us > _LONGEST_PAUSE_US
        ),
        default=count,
    )
    return first, end


def _longest_first(events: list[Event]) -> list[Event]:
    """Events by start; ties by duration, longest first."""
    ties = [place for place, (one, two) in enumerate(pairwise(events)) if one.start_us == two.start_us]
    done = 0
    for place in ties:
        if place < done:
            continue
        done = place + 1
        while done < len(events) and events[done].start_us == events[place].start_us:
            done += 1
        events[place:done] = sorted(events[place:done], key=attrgetter("duration_us"), reverse=True)
    return events
