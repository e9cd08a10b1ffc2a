"""The operators of the host as a tree, and which of them launched a kernel.

A kernel's launch is the runtime call with its correlation id. Its operator is the one that the kernel's External id
names, where that operator was running on the launching thread when the launch happened (older profilers write the
correlation id there), else the innermost operator around the launch on the launching thread. Backward operators
run on autograd's threads: the Sequence number that they share with the forward operator, and the node's name, tie the
two.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelcast.collector.ingest.arguments import Arguments, arguments_of, whole
from kernelcast.collector.traces.kineto import HOST_OPERATOR_CATEGORY, LAUNCH_CATEGORIES, Event, Trace

NODE_PREFIX = "autograd::engine::evaluate_function: "
_RECOMPUTATION = "CheckpointFunction"  # forward operators run again inside of it


@dataclass(frozen=True, slots=True)
class HostOperator:
    """One call of an operator on the host; `parent` is the index of the call around it, -1 for none."""

    event: Event
    arguments: Arguments
    parent: int


class HostOperators:
    """All calls of a trace, by start time."""

    def __init__(self, trace: Trace) -> None:
        self.calls: list[HostOperator] = []
        self._by_thread: dict[str, tuple[list[float], list[int]]] = {}
        self._by_external_id: dict[int, int] = {}
        self._by_sequence: dict[int, list[int]] = {}
        self._launches: dict[int, Event] = {}
        stacks: dict[str, list[int]] = {}
        for event in trace.events:
            if event.category == HOST_OPERATOR_CATEGORY:
                self._add(event, stacks)
            elif event.category in LAUNCH_CATEGORIES:
                correlation = whole(arguments_of(event).correlation)
                if correlation is not None:
                    self._launches[correlation] = event

    def _add(self, event: Event, stacks: dict[str, list[int]]) -> None:
        index, thread, arguments = len(self.calls), event.thread, arguments_of(event)
        stack = stacks.setdefault(thread, [])
        while stack and self.calls[stack[-1]].event.end_us <= event.start_us:
            stack.pop()
        self.calls.append(HostOperator(event, arguments, stack[-1] if stack else -1))
        stack.append(index)
        starts, indexes = self._by_thread.setdefault(thread, ([], []))
        starts.append(event.start_us)
        indexes.append(index)
        if (external_id := whole(arguments.external_id)) is not None:
            self._by_external_id.setdefault(external_id, index)
        sequence = whole(arguments.sequence_number)
        if sequence is not None and sequence >= 0 and "Backward" not in event.name:
            self._by_sequence.setdefault(sequence, []).append(index)

    @property
    def launched_anything(self) -> bool:
        """Whether the trace holds calls of a device's runtime."""
        return bool(self._launches)

    def launching(self, kernel: Event, arguments: Arguments) -> int | None:
        """Index of the innermost call that launched a kernel, or None."""
        correlation = whole(arguments.correlation)
        launch = None if correlation is None else self._launches.get(correlation)
        external_id = whole(arguments.external_id)
        named = None
        if external_id is not None and external_id != correlation:  # else it is the correlation id again
            named = self._by_external_id.get(external_id)
        if launch is None:
            return named if named is not None and self._event(named).start_us <= kernel.start_us else None
        if named is not None:
            event = self._event(named)
            if event.thread == launch.thread and event.start_us <= launch.start_us <= event.end_us:
                return named
        return self._around(launch.thread, launch.start_us)

    def _event(self, index: int) -> Event:
        return self.calls[index].event

    def _around(self, thread: str, moment_us: float) -> int | None:
        starts, indexes = self._by_thread.get(thread, ([], []))
        place = bisect_right(starts, moment_us) - 1
        index = indexes[place] if place >= 0 else -1
        while index >= 0 and self.calls[index].event.end_us < moment_us:
            index = self.calls[index].parent
        return index if index >= 0 else None

    def chain(self, index: int) -> Iterator[int]:
        """The call and those around it, innermost first."""
        while index >= 0:
            yield index
            index = self.calls[index].parent

    def within(self, index: int) -> tuple[list[int], int | None]:
        """The forward calls around a call, innermost first, and the node of autograd around those.

        A node that recomputes counts as forward. Inside another node there are no forward calls: they are its own.
        """
        calls: list[int] = []
        for each in self.chain(index):
            name = self.calls[each].event.name
            if name.startswith(NODE_PREFIX):
                return (calls, None) if _RECOMPUTATION in name else ([], each)
            calls.append(each)
        return calls, None

    def forward_of(self, node: int) -> int | None:
        """The forward call that a node of autograd differentiates: same sequence number, and of its name."""
        call = self.calls[node]
        sequence = whole(call.arguments.sequence_number)
        wanted = _bare(call.event.name.removeprefix(NODE_PREFIX).partition("Backward")[0])
        candidates: Sequence[int] = self._by_sequence.get(-1 if sequence is None else sequence, ())
        for index in reversed(candidates):  # the latest before it: numbers start anew in some programs
            event = self.calls[index].event
            if event.start_us <= call.event.start_us and _bare(event.name.partition("::")[2]) == wanted:
                return index
        return None


def _bare(name: str) -> str:
    return name.replace("_", "").lower()
