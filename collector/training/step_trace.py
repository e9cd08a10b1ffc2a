"""Every kernel of a traced step given to the operator call that it belongs to.

Forward, the mark around a call says so (marks.py). Backward, autograd does: a node carries the sequence number of the
operator call that made it. On a CPU the operators on the main thread are the work; on a GPU the kernels, each belonging
to what launched it. Work that belongs to no operator is kept by its own name, and so is time in which nothing ran.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelcast.collector.traces.kineto import (
    ANNOTATION_CATEGORY,
    DEVICE_CATEGORIES,
    HOST_OPERATOR_CATEGORY,
    LAUNCH_CATEGORIES,
    Event,
    Trace,
)
from kernelcast.collector.training.marks import BACKWARD, FORWARD, LAYER, LOSS, OPERATOR, STEP

_NODE = "autograd::engine::evaluate_function: "
_ACCUMULATE = "AccumulateGrad"
_NORMS = ("layer_norm", "rms_norm")
_ADDS = ("aten::add", "aten::add_")
_COLLECTIVE_CALL = "c10d::"
_COLLECTIVE_MARKS = ("mp_all_reduce", "dp_all_reduce", "dp_all_gather", "pp_p2p")
_PASSES = (FORWARD, LOSS, BACKWARD)

OTHER = ""
"""The operator of work that belongs to none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who a piece of work belongs to: a call of an operator (by the number of its mark), a layer, a pass.

    `name` of an operator's work is the operator; of other work (`known` is False) the kernel's own.
    """

    name: str = OTHER
    known: bool = False
    direction: str = "forward"
    call: int = -1
    layer: int = -1
    in_pass: int = -1


@dataclass(frozen=True, slots=True)
class Piece:
    """A span of work of one owner, µs on the trace's clock."""

    owner: Owner
    start_us: float
    end_us: float

    @property
    def time_us(self) -> float:
        """Its length."""
        return self.end_us - self.start_us


@dataclass(slots=True)
class _Frame:
    """An open event on the main thread: until when, whose, and whether it is work or only says whose."""

    end_us: float
    owner: Owner
    is_work: bool
    is_node: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedWork:
    """Pieces in order of time, and the marks of passes and layers with their numbers (as `Owner` has them).

    `on_device`: the pieces are a GPU's kernels, which run later than the marks around their launches.
    """

    pieces: tuple[Piece, ...]
    passes: dict[int, Event]
    layers: dict[int, Event]
    steps: tuple[Event, ...]
    on_device: bool


def attribute_step(trace: Trace) -> TracedWork:
    """Who owns what ran in the marked steps. Consecutive pieces of one call are joined, gaps within included."""
    marks = [e for e in trace.of_category(ANNOTATION_CATEGORY) if e.name.startswith("kernelcast.")]
    main = next((e.thread for e in marks if e.name == STEP), "")
    walker = _Walker(main)
    host = [
        event
        for event in trace.events
        if event.category == HOST_OPERATOR_CATEGORY
        or (event.category == ANNOTATION_CATEGORY and event.name.startswith("kernelcast."))
    ]
    launches = {event.args.get("correlation"): event for event in trace.of_category(*LAUNCH_CATEGORIES)}
    kernels = trace.of_category(*DEVICE_CATEGORIES)
    pieces = walker.pieces([event for event in host if event.thread == main])
    if kernels:
        # Backward passes run on threads of their own there; their launches know the thread.
        for thread in dict.fromkeys(e.thread for e in host if e.thread != main):
            walker.pieces([event for event in host if event.thread == thread])
        pieces = list(_device_pieces(kernels, launches, walker.owners))
    return TracedWork(
        pieces=tuple(_joined(sorted(pieces, key=lambda piece: piece.start_us))),
        passes=walker.passes,
        layers=walker.layers,
        steps=tuple(e for e in marks if e.name == STEP),
        on_device=bool(kernels),
    )


class _Walker:
    """Walks through the nested events of a thread by start time and cuts its time into owned pieces."""

    def __init__(self, main: str) -> None:
        self._main = main
        self._makers: dict[int, Owner] = {}
        self._count = 0
        self._met: set[int] = set()
        self.passes: dict[int, Event] = {}
        self.layers: dict[int, Event] = {}
        # (start, end, owner) of every work event by thread, for launches.
        self.owners: dict[str, list[tuple[float, float, Owner]]] = {}

    def pieces(self, events: Sequence[Event]) -> list[Piece]:
        """The owned pieces of one thread, whose events are given by start time."""
        found: list[Piece] = []
        stack: list[_Frame] = []
        last_node, cursor = Owner(), 0.0

        def advance(until_us: float) -> None:
            nonlocal cursor
            while stack:
                top = stack[-1]
                end = min(top.end_us, until_us)
                if top.is_work and end > cursor:
                    found.append(Piece(top.owner, cursor, end))
                cursor = max(cursor, end)
                if top.end_us > until_us:
                    break
                stack.pop()
            cursor = max(cursor, until_us)

        for event in events:
            advance(event.start_us)
            parent = stack[-1] if stack else _Frame(float("inf"), Owner(), False)
            if event.category == ANNOTATION_CATEGORY:
                owner, is_work = self._of_mark(event, parent)
            else:
                owner, is_work = self._of_call(event, parent, last_node), True
                if event.name.startswith(_NODE):
                    last_node = owner
            stack.append(_Frame(event.end_us, owner, is_work, event.name.startswith(_NODE)))
            if is_work:
                self.owners.setdefault(event.thread, []).append((event.start_us, event.end_us, owner))
        advance(float("inf"))
        return found

    def _of_mark(self, event: Event, parent: _Frame) -> tuple[Owner, bool]:
        self._count += 1
        number, owner = self._count, parent.owner
        if event.name in _PASSES:
            self.passes[number] = event
            direction = "backward" if event.name == BACKWARD else "forward"
            return Owner(in_pass=number, direction=direction), False
        if event.name == LAYER and owner.layer >= 0:
            # Run again in the backward pass of a layer, it is part of that.
            return owner, parent.is_work
        if event.name == LAYER:
            self.layers[number] = event
            return replace(owner, layer=number), parent.is_work
        if event.name == STEP:
            return Owner(), False
        name = event.name.removeprefix(OPERATOR)
        is_collective = name in _COLLECTIVE_MARKS
        direction = "once" if is_collective or owner.in_pass < 0 else "forward"
        found = replace(owner, name=name, known=True, direction=direction, call=number)
        return found, is_collective or parent.is_work

    def _of_call(self, event: Event, parent: _Frame, last_node: Owner) -> Owner:
        owner, arguments = parent.owner, event.args
        sequence = arguments.get("Sequence number")
        if event.name.startswith(_NODE):
            if _ACCUMULATE in event.name:
                return last_node
            maker = self._makers.get(sequence) if isinstance(sequence, int) else None
            if maker is None or not maker.known:
                return Owner(name=event.name.removeprefix(_NODE), direction="backward", in_pass=owner.in_pass)
            return replace(maker, direction="backward", in_pass=owner.in_pass)
        if isinstance(sequence, int) and arguments.get("Fwd thread id") == 0 and event.thread == self._main:
            # The last call that starts with a number is the one that makes the node.
            self._makers[sequence] = owner
        if event.name.startswith(_COLLECTIVE_CALL) and owner.known and owner.name not in _COLLECTIVE_MARKS:
            self._count += 1  # one mark holds several: each is waited for by itself
            return replace(owner, name=f"{owner.name}_all_reduce", direction="once", call=self._count)
        is_sum = parent.is_node and event.name in _ADDS and owner.name in _NORMS and owner.layer >= 0
        if is_sum and owner.call not in self._met:
            # Two gradients of the residual stream meet where the norm's arrives. Further sums are the norm's own: on a
            # CPU, RMSNorm is made of several nodes.
            self._met.add(owner.call)
            return replace(owner, name="residual_add")
        if not owner.known and owner.name == OTHER:
            return replace(owner, name=event.name)
        return owner


def _device_pieces(
    kernels: Sequence[Event],
    launches: Mapping[Any, Event],
    owners: dict[str, list[tuple[float, float, Owner]]],
) -> Iterator[Piece]:
    starts = {thread: [start for start, _, _ in spans] for thread, spans in owners.items()}
    for kernel in kernels:
        launch = launches.get(kernel.args.get("correlation"))
        owner = None
        if launch is not None and launch.thread in owners:
            spans = owners[launch.thread]
            index = bisect_right(starts[launch.thread], launch.start_us) - 1
            # Spans are nested: going back, the first that is still open is the innermost.
            while index >= 0 and owner is None:
                _, end, candidate = spans[index]
                owner = candidate if end >= launch.start_us else None
                index -= 1
        if owner is None or not owner.known:
            owner = replace(owner or Owner(), name=kernel.name)
        yield Piece(owner, kernel.start_us, kernel.end_us)


def _joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Neighbouring pieces of one call as one, from the first start to the last end."""
    current: Piece | None = None
    for piece in pieces:
        if current is not None and piece.owner == current.owner and piece.owner.known:
            current = Piece(current.owner, current.start_us, max(current.end_us, piece.end_us))
        else:
            if current is not None:
                yield current
            current = piece
    if current is not None:
        yield current
