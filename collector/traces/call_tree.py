"""The calls of the host as a tree, with links from kernels and autograd nodes to calls.

Calls nest by time on their thread. A kernel's launch is the runtime call with its correlation id. The kernel belongs to
the innermost call around its launch, or to the call of its External id if that call ran on the launching thread during
the launch (older profilers write the correlation id there). Backward calls run inside an autograd node, which carries
the sequence number of the forward call that it differentiates.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from math import inf
from typing import overload

import numpy as np
from numpy.typing import NDArray

from kernelcast.collector.traces.arguments import Arguments, decoded
from kernelcast.collector.traces.events import (
    ANNOTATION_CATEGORY,
    HOST_OPERATOR_CATEGORY,
    LAUNCH_CATEGORIES,
    NO_ID,
    Events,
    last_with,
)
from kernelcast.collector.traces.kineto import Trace

COMMUNICATION_CALL = "record_param_comms"
NODE_PREFIX = "autograd::engine::evaluate_function: "
# Profilers before torch 1.9 recorded the nodes alone, not the engine around them.
_BARE_NODE = re.compile(r"[A-Z]\w*Backward\d*|torch::autograd::AccumulateGrad")
_FEW = 8  # calls of one sequence number that are searched linearly


class CallTree:
    """All host calls of a trace, by start time; annotations that start with one of `annotations` nest like calls.

    `calls[index]` ran on `threads[index]`, directly inside `calls[parents[index]]` (None: inside no other call).
    `launches` are the calls of the device's runtime, by start. Time is linear in the number of events.
    """

    def __init__(self, trace: Trace, *, annotations: tuple[str, ...] = ()) -> None:
        events = trace.events
        is_call = events.are(HOST_OPERATOR_CATEGORY)
        if annotations:
            is_call |= events.where(
                lambda category, name: category == ANNOTATION_CATEGORY and name.startswith(annotations)
            )
        self.calls = events[is_call]
        self.launches = trace.of_category(*LAUNCH_CATEGORIES)
        self.names = self.calls.named()
        self.threads = self.calls.threads()
        self.parents: list[int | None] = []
        self._around_launch = np.full(len(self.launches), -1)
        self._innermost: dict[str, list[int | None]] = {}
        self._forward_of: dict[int, int | None] = {}
        starts_us = np.concatenate([self.calls.start_us, self.launches.start_us])
        places = np.concatenate([self.calls.place, self.launches.place]).tolist()
        count, ends_us = len(self.calls), self.calls.end_us.tolist()
        open_calls: dict[int, list[int]] = defaultdict(list)
        # The sort is stable: a launch follows the calls that start at the same time, and is inside them.
        order = np.argsort(starts_us, kind="stable")
        for index, start_us in zip(order.tolist(), starts_us[order].tolist(), strict=True):
            stack = open_calls[places[index]]
            if index < count:
                while stack and ends_us[stack[-1]] <= start_us:
                    stack.pop()
                self.parents.append(stack[-1] if stack else None)
                stack.append(index)
            else:
                while stack and ends_us[stack[-1]] < start_us:
                    stack.pop()
                if stack:
                    self._around_launch[index - count] = stack[-1]

    @cached_property
    def arguments(self) -> Sequence[Arguments]:
        """The arguments of every call, decoded on access."""
        return _Arguments(self.calls)

    def innermost(self, wanted: str) -> Sequence[int | None]:
        """For every call, the innermost call of a name around it, or itself; `wanted` may be a namespace (`c10d::`).

        Computed for all calls at once: a search outwards from each would be quadratic for deeply nested calls.
        """
        if wanted not in self._innermost:
            found = self._innermost[wanted] = []
            for index, (name, parent) in enumerate(zip(self.names, self.parents, strict=True)):
                is_wanted = name.startswith(wanted) if wanted.endswith("::") else name == wanted
                found.append(index if is_wanted else None if parent is None else found[parent])
        return self._innermost[wanted]

    @cached_property
    def self_times_us(self) -> Sequence[float]:
        """Duration of every call minus the durations of its direct children."""
        durations_us: list[float] = self.calls.duration_us.tolist()
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

    def launch_of(self, kernels: Events) -> NDArray[np.intp]:
        """The position in `launches` of every kernel's launch, -1 where it was not recorded."""
        return last_with(self.launches.correlation, kernels.correlation)

    def launching(self, kernels: Events) -> NDArray[np.intp]:
        """For every kernel, the innermost call that launched it, -1 for none."""
        launch = self.launch_of(kernels)
        external_id = np.where(kernels.external_id == kernels.correlation, NO_ID, kernels.external_id)
        # The first call with the id: the last one from behind.
        named = last_with(self.calls.external_id[::-1], external_id)
        named[named >= 0] = len(self.calls) - 1 - named[named >= 0]
        found, is_named, has_launch = named.copy(), named >= 0, launch >= 0
        if len(self.calls):
            start_us, end_us = self.calls.start_us[named], self.calls.end_us[named]
            found[is_named & ~has_launch & (start_us > kernels.start_us)] = -1
            if len(self.launches):
                launch_us = self.launches.start_us[launch]
                threads = self._thread_numbers
                is_around = threads[self.calls.place[named]] == threads[self.launches.place[launch]]
                is_around &= is_named & (start_us <= launch_us) & (launch_us <= end_us)
                found = np.where(has_launch, np.where(is_around, named, self._around_launch[launch]), found)
        return found

    @property
    def _thread_numbers(self) -> NDArray[np.intp]:
        """A number for every place; places whose texts are equal share one."""
        numbers: dict[str, int] = {}
        texts = (f"{pid}/{tid}" for pid, tid in self.calls.texts.places)
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts])

    def forget_launches(self) -> None:
        """Free the launches, one per kernel; `launching` does not work afterwards."""
        self.launches, self._around_launch = Events(), self._around_launch[:0]

    @property
    def backward_nodes(self) -> Sequence[int | None]:
        """The autograd node of every call in a backward pass; None for forward calls, also recomputed ones."""
        return self._backward[0]

    @property
    def recomputed(self) -> Sequence[bool]:
        """Whether a backward pass made the call to compute a forward pass again (activation checkpointing).

        A node computes its gradient with autograd off: its calls have no sequence number. A forward pass that runs in
        front of that (an unpack hook, or a checkpointed function's backward) has numbers. Where all calls have them, as
        under `create_graph`, the node recomputes nothing.
        """
        return self._backward[1]

    @cached_property
    def _backward(self) -> tuple[Sequence[int | None], Sequence[bool]]:
        nodes: list[int | None] = []
        inside: dict[int, int] = {}  # the node's own call, inside the engine's
        spans: dict[int, list[int]] = {}  # first and last numbered call of a node, and its last other one
        has_number: list[bool] = (self.calls.sequence_number >= 0).tolist()
        for index, (name, parent) in enumerate(zip(self.names, self.parents, strict=True)):
            around = None if parent is None else nodes[parent]
            is_engine = around is not None and self.names[around].startswith(NODE_PREFIX)
            is_node = name.startswith(NODE_PREFIX) or (not is_engine and _is_bare_node(name))
            nodes.append(index if is_node else around)
            if around is None or parent not in (around, inside.get(around)):
                continue
            span = spans.setdefault(around, [index, -1, -1])
            if is_engine and name == self.names[around].removeprefix(NODE_PREFIX):
                inside[around] = span[2] = index
            elif is_node or not has_number[index]:
                span[2] = index
            else:
                span[:2] = index if span[1] < 0 else span[0], index
        again: list[bool] = []
        for index, (parent, node) in enumerate(zip(self.parents, nodes, strict=True)):
            if node is None or parent is None or node == index:
                again.append(False)
                continue
            first, last, other = spans[node]
            is_direct = parent in (node, inside.get(node))
            again.append(again[parent] or (is_direct and first <= index <= last < other))
            if again[index]:
                nodes[index] = None
        return nodes, again

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
        sequence = int(self.calls.sequence_number[node])
        name = self.names[node].removeprefix(NODE_PREFIX).partition("Backward")[0]
        candidates = self._forward.get(sequence)
        if isinstance(candidates, dict):
            of_key = candidates.get(thread or _bare(name), ())
            place = bisect_right(of_key, node)
            return of_key[place - 1] if place else None
        key, few = thread or _bare(name), [candidates] if isinstance(candidates, int) else candidates or ()
        return next((index for index in reversed(few) if index <= node and key in self._keys(index)), None)

    def _keys(self, index: int) -> tuple[str, str]:
        """Lookup keys of a forward call: its thread and its bare name; Python functions have no `aten::`."""
        name = self.names[index]
        return self.threads[index], _bare(name.partition("::")[2] or name)

    @cached_property
    def _forward(self) -> dict[int, int | list[int] | dict[str, list[int]]]:
        """Forward calls by sequence number: one, a short list, or an index by thread and bare name."""
        found: dict[int, int | list[int] | dict[str, list[int]]] = {}
        many: dict[int, list[int]] = {}
        numbered = np.flatnonzero(self.calls.sequence_number >= 0)
        sequences = self.calls.sequence_number[numbered].tolist()
        for index, sequence in zip(numbered.tolist(), sequences, strict=True):
            if "Backward" in self.names[index] or self.names[index].startswith(NODE_PREFIX):
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
    def __init__(self, calls: Events) -> None:
        self._texts, self._numbers = calls.texts.arguments, memoryview(calls.arguments.data)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Arguments: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Arguments]: ...
    def __getitem__(self, index: int | slice) -> Arguments | Sequence[Arguments]:
        if isinstance(index, slice):
            return [decoded(self._texts[number]) for number in self._numbers[index]]
        return decoded(self._texts[self._numbers[index]])


@lru_cache(maxsize=4096)
def _is_bare_node(name: str) -> bool:
    return _BARE_NODE.fullmatch(name) is not None


@lru_cache(maxsize=4096)
def _bare(name: str) -> str:
    return name.replace("_", "").lower()
