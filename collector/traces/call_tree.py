"""The calls of the host as a tree, with links from kernels and autograd nodes to calls.

Calls nest by time on their thread. A kernel's launch is the runtime call with its correlation id. The kernel belongs to
the innermost call around its launch, or to the call of its External id if that call ran on the launching thread during
the launch (older profilers write the correlation id there). Backward calls run inside an autograd node, which carries
the sequence number of the forward call that it differentiates.
"""

import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from math import inf
from operator import attrgetter
from typing import overload

import numpy as np
from numpy.typing import NDArray

from kernelcast.collector.traces.arguments import Arguments, arguments_of, call_ids_of, whole
from kernelcast.collector.traces.events import (
    ANNOTATION_CATEGORY,
    HOST_OPERATOR_CATEGORY,
    LAUNCH_CATEGORIES,
    Event,
)
from kernelcast.collector.traces.kineto import Trace

COMMUNICATION_CALL = "record_param_comms"
NODE_PREFIX = "autograd::engine::evaluate_function: "
# Profilers before torch 1.9 recorded the nodes alone, not the engine around them.
_BARE_NODE = re.compile(r"[A-Z]\w*Backward\d*|torch::autograd::AccumulateGrad")
_RECOMPUTATION = "CheckpointFunction"
_NO_ID = -(2**63)
_FEW = 8  # calls of one sequence number that are searched linearly


class CallTree:
    """All host calls of a trace, by start time; annotations that start with one of `annotations` nest like calls.

    `calls[index]` ran on `threads[index]`, directly inside `calls[parents[index]]` (None: inside no other call).
    `launches` are the calls of the device's runtime by correlation id. Time is linear in the number of events.
    """

    def __init__(self, trace: Trace, *, annotations: tuple[str, ...] = ()) -> None:
        self.calls: list[Event] = [
            event
            for event in trace.events
            if event.category == HOST_OPERATOR_CATEGORY
            or (event.category == ANNOTATION_CATEGORY and event.name.startswith(annotations))
        ]
        self.threads: list[str] = []
        self.parents: list[int | None] = []
        self.launches: dict[int, Event] = {}
        self._around_launch: dict[int, int | None] = {}
        self._innermost: dict[str, list[int | None]] = {}
        self._forward_of: dict[int, int | None] = {}
        ends_us = [event.end_us for event in self.calls]
        open_calls: dict[object, tuple[str, list[int]]] = {}
        launches = trace.of_category(*LAUNCH_CATEGORIES)
        # The sort is stable: a launch follows the calls that start at the same time, and is inside them.
        for event in sorted([*self.calls, *launches], key=attrgetter("start_us")):
            place, start_us = (event.pid, event.tid), event.start_us
            thread, stack = open_calls.get(place) or open_calls.setdefault(place, (event.thread, []))
            if event.category in LAUNCH_CATEGORIES:
                while stack and ends_us[stack[-1]] < start_us:
                    stack.pop()
                if (correlation := whole(arguments_of(event).correlation)) is not None:
                    self.launches[correlation] = event
                    self._around_launch[correlation] = stack[-1] if stack else None
            else:
                while stack and ends_us[stack[-1]] <= start_us:
                    stack.pop()
                self.parents.append(stack[-1] if stack else None)
                self.threads.append(thread)
                stack.append(len(self.threads) - 1)

    @cached_property
    def arguments(self) -> Sequence[Arguments]:
        """The arguments of every call, decoded on access: all of them would be larger than the trace."""
        return _Arguments(self.calls)

    @cached_property
    def _ids(self) -> "tuple[array[int], array[int]]":
        """External id and sequence number of every call; `_NO_ID` where missing."""
        externals, sequences = array("q"), array("q")
        for one in map(call_ids_of, self.calls):
            external_id, sequence = whole(one.external_id), whole(one.sequence_number)
            externals.append(_NO_ID if external_id is None else external_id)
            sequences.append(_NO_ID if sequence is None else sequence)
        return externals, sequences

    def innermost(self, wanted: str) -> Sequence[int | None]:
        """For every call, the innermost call of a name around it, or itself; `wanted` may be a namespace (`c10d::`).

        Computed for all calls at once: a search outwards from each would be quadratic for deeply nested calls.
        """
        if wanted not in self._innermost:
            found = self._innermost[wanted] = []
            for index, (event, parent) in enumerate(zip(self.calls, self.parents, strict=True)):
                is_wanted = event.name.startswith(wanted) if wanted.endswith("::") else event.name == wanted
                found.append(index if is_wanted else None if parent is None else found[parent])
        return self._innermost[wanted]

    @cached_property
    def self_times_us(self) -> Sequence[float]:
        """Duration of every call minus the durations of its direct children."""
        durations_us = [max(event.duration_us, 0.0) for event in self.calls]
        own_us = durations_us.copy()
        for parent, duration_us in zip(self.parents, durations_us, strict=True):
            if parent is not None:
                own_us[parent] -= duration_us
        return own_us

    def slices(self, thread: str) -> Iterator[tuple[int, float, float]]:
        """Self-time spans of a thread's calls: (call, start, end) in order of time, µs."""
        cursor_us, running = -inf, None
        for index in (*(index for index, own in enumerate(self.threads) if own == thread), None):
            start_us = inf if index is None else self.calls[index].start_us
            around = None if index is None else self.parents[index]
            while running is not None:
                end_us = min(self.calls[running].end_us, start_us)
                if end_us > cursor_us:
                    yield running, cursor_us, end_us
                    cursor_us = end_us
                if running == around:
                    break
                running = self.parents[running]
            cursor_us, running = max(cursor_us, start_us), index

    def launching(self, kernel: Event, arguments: Arguments) -> int | None:
        """The innermost call that launched a kernel, or None; `arguments` are the kernel's."""
        correlation, external_id = whole(arguments.correlation), whole(arguments.external_id)
        external_id = whole(arguments.old_external_id) if external_id is None else external_id
        named = None
        if external_id is not None and external_id != correlation:
            named = self._call_named(external_id)
        if correlation is None or correlation not in self.launches:
            return named if named is not None and self.calls[named].start_us <= kernel.start_us else None
        launch = self.launches[correlation]
        if named is not None and self.threads[named] == launch.thread:
            call = self.calls[named]
            if call.start_us <= launch.start_us <= call.end_us:
                return named
        return self._around_launch[correlation]

    def forget_launches(self) -> None:
        """Free the launches, one per kernel; `launching` does not work afterwards."""
        self.launches.clear()
        self._around_launch.clear()
        self.__dict__.pop("_by_external_id", None)

    def _call_named(self, external_id: int) -> int | None:
        """The first call with an External id."""
        ids, calls = self._by_external_id
        place = int(np.searchsorted(ids, external_id))
        return int(calls[place]) if place < len(ids) and ids[place] == external_id else None

    @cached_property
    def _by_external_id(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sorted External ids, and their calls."""
        ids = np.frombuffer(self._ids[0], dtype=np.int64)
        order = np.argsort(ids, kind="stable")
        order = order[ids[order] != _NO_ID]
        return ids[order], order

    @cached_property
    def backward_nodes(self) -> Sequence[int | None]:
        """The autograd node of every call in a backward pass; None for forward calls, also recomputed ones."""
        found: list[int | None] = []
        for index, (event, parent) in enumerate(zip(self.calls, self.parents, strict=True)):
            around = None if parent is None else found[parent]
            if event.name.startswith(NODE_PREFIX) or (
                around is None and _BARE_NODE.fullmatch(event.name) is not None
            ):
                found.append(None if _RECOMPUTATION in event.name else index)
            else:
                found.append(around)
        return found

    def forward_of(self, node: int, *, thread: str = "") -> int | None:
        """The forward call that an autograd node differentiates: the latest one with its sequence number.

        The latest, because some programs restart the numbers. Of several calls with one number, the right one has the
        node's name (`AddmmBackward0`: `aten::addmm`), or is the last one on `thread`, if given.
        """
        if not thread:
            if node not in self._forward_of:
                self._forward_of[node] = self._found_forward(node, "")
            return self._forward_of[node]
        return self._found_forward(node, thread)

    def _found_forward(self, node: int, thread: str) -> int | None:
        sequence = self._ids[1][node]
        name = self.calls[node].name.removeprefix(NODE_PREFIX).partition("Backward")[0]
        candidates = self._forward.get(sequence)
        if isinstance(candidates, dict):
            of_key = candidates.get(thread or _bare(name), ())
            place = bisect_right(of_key, node)
            return of_key[place - 1] if place else None
        key, few = thread or _bare(name), [candidates] if isinstance(candidates, int) else candidates or ()
        return next((index for index in reversed(few) if index <= node and key in self._keys(index)), None)

    def _keys(self, index: int) -> tuple[str, str]:
        """Lookup keys of a forward call: its thread and its bare name; Python functions have no `aten::`."""
        name = self.calls[index].name
        return self.threads[index], _bare(name.partition("::")[2] or name)

    @cached_property
    def _forward(self) -> dict[int, int | list[int] | dict[str, list[int]]]:
        """Forward calls by sequence number: one, a short list, or an index by thread and bare name."""
        found: dict[int, int | list[int] | dict[str, list[int]]] = {}
        many: dict[int, list[int]] = {}
        for index, (event, sequence) in enumerate(zip(self.calls, self._ids[1], strict=True)):
            if sequence < 0 or "Backward" in event.name or event.name.startswith(NODE_PREFIX):
                continue
            known = found.setdefault(sequence, index)
            if isinstance(known, list):
                known.append(index)
                if len(known) > _FEW:
                    many[sequence] = known
            elif isinstance(known, int) and known != index:
                found[sequence] = [known, index]
        return found | {sequence: self._by_key(indices) for sequence, indices in many.items()}

    def _by_key(self, indices: Sequence[int]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for index in indices:
            for key in self._keys(index):
                found[key].append(index)
        return found


class _Arguments(Sequence[Arguments]):
    def __init__(self, calls: Sequence[Event]) -> None:
        self._calls = calls

    def __len__(self) -> int:
        return len(self._calls)

    @overload
    def __getitem__(self, index: int) -> Arguments: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Arguments]: ...
    def __getitem__(self, index: int | slice) -> Arguments | Sequence[Arguments]:
        if isinstance(index, slice):
            return [arguments_of(call) for call in self._calls[index]]
        return arguments_of(self._calls[index])


@lru_cache(maxsize=4096)
def _bare(name: str) -> str:
    return name.replace("_", "").lower()
