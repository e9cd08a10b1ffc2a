"""Which events waited for events of other streams (cudaStreamWaitEvent), where the profiler recorded the streams.

Kineto does so with `enable_cuda_sync_events`: a wait names its stream, the awaited one, and the call that marked there
what is awaited (cudaEventRecord). The next launch on the stream waits for the last one before the mark.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernelcast.collector.ingest.kernel_columns import Pieces, Rows
from kernelcast.collector.traces.arguments import arguments_of, whole
from kernelcast.collector.traces.call_tree import CallTree
from kernelcast.collector.traces.events import SYNC_CATEGORY
from kernelcast.collector.traces.kineto import Trace
from kernelcast.store.runs import StreamWait


class _Wait(NamedTuple):
    """Two streams of a device, and when the host made the first wait and recorded the event it waits for, µs."""

    device: int
    stream: int
    awaited: int
    waited_us: float
    marked_us: float


def recorded_waits(trace: Trace, tree: CallTree) -> list[_Wait]:
    """The waits between streams whose calls were recorded too."""
    events, found = trace.of_category(SYNC_CATEGORY), list[_Wait]()
    if not len(events):
        return found
    called_us = dict(zip(tree.launches.correlation.tolist(), tree.launches.start_us.tolist(), strict=True))
    for event in events:
        args = arguments_of(event)
        device, stream, awaited = (whole(one) for one in (args.device, args.stream, args.awaited_stream))
        waited_us, marked_us = (
            called_us.get(one) for one in (event.correlation, whole(args.mark_correlation))
        )
        if None not in (stream, awaited, waited_us, marked_us) and stream != awaited:
            found.append(_Wait(device or 0, stream, awaited, waited_us, marked_us))  # type: ignore[arg-type]
    return found


def stream_waits(pieces: Pieces, waits: Sequence[_Wait]) -> tuple[StreamWait, ...]:
    """The events that waited, with those that they waited for."""
    launched: dict[tuple[int, int], Rows] = {}

    def rows(device: int, stream: int) -> Rows:
        if (device, stream) not in launched:
            is_own = (pieces.device == device) & (pieces.stream == stream) & ~np.isnan(pieces.launch_us)
            own = np.flatnonzero(is_own)
            launched[device, stream] = own[np.argsort(pieces.launch_us[own], kind="stable")]
        return launched[device, stream]

    found = set[StreamWait]()
    for wait in waits:
        own, others = rows(wait.device, wait.stream), rows(wait.device, wait.awaited)
        place = np.searchsorted(pieces.launch_us[own], wait.waited_us)
        marked = np.searchsorted(pieces.launch_us[others], wait.marked_us) - 1
        if place < len(own) and marked >= 0:
            found.add(StreamWait(int(own[place]), int(others[marked])))
    return tuple(sorted(found))
