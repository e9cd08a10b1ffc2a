"""Attributes every kernel of a trace to a recognised call, or to none with a reason.

A forward kernel belongs to the outermost recognised call around its launch; a backward kernel to the forward call that
the autograd node around its launch differentiates. An occurrence lasts from its earliest kernel's start to its latest
kernel's end.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kernelcast.collector.ingest.collectives import annotated_collective, annotated_message, collective
from kernelcast.collector.ingest.experts import BOTH_GRADIENTS, DEEP_EP, GROUPED_MM, is_weight_gradient
from kernelcast.collector.ingest.recognise import Surroundings, may_be_operator, recognised
from kernelcast.collector.ingest.recognised_calls import NO_OPERATOR, RecognisedCall, Unrecognised
from kernelcast.collector.ingest.sequences import sequences_of
from kernelcast.collector.traces.arguments import Arguments, arguments_of, shapes, shapes_text, whole
from kernelcast.collector.traces.call_tree import COMMUNICATION_CALL, NODE_PREFIX, CallTree
from kernelcast.collector.traces.events import ANNOTATION_CATEGORY, DEVICE_CATEGORIES, Event
from kernelcast.collector.traces.kineto import RESOLUTION_US, Trace
from kernelcast.runtime.operators import Direction

_DEEP_EP = "deep_ep"
_C10D = "c10d::"
_NO_CALL = Unrecognised("no operator of the host is recorded for it")
_NO_FORWARD = Unrecognised("backward of an unknown call")
_NCCL = ("nccl:", "rccl:")
_ACCUMULATION = "AccumulateGrad"
_NO_DURATION = Unrecognised("took no time")


class Launch(NamedTuple):
    """What a launch is recorded with; empty or None where it is not."""

    grid: str = ""  # JSON list of three
    block: str = ""
    registers: int | None = None  # of a thread
    occupancy_percent: float | None = None
    message_bytes: int | None = None  # of a copy or fill


_NO_LAUNCH = Launch()


@dataclass(slots=True)
class KernelSpan:
    """One kernel; on a CPU one call, whose self time `duration_us` is part of `end_us − start_us`."""

    name: str
    category: str
    start_us: float
    duration_us: float
    end_us: float
    stream: int
    call: int | None  # index of the call on the host
    device: int = 0
    launch_us: float | None = None
    correlation: int | None = None
    occurrence: "Occurrence | None" = None  # that it belongs to
    launch: Launch | None = None


@dataclass(slots=True)
class Occurrence:
    """One execution of a recognised call. Times in µs on the trace's clock."""

    pieces: list[KernelSpan] = field(default_factory=list)
    is_overlapped: bool = False  # kernels of other streams ran at the same time
    kind: "SampleKey | None" = None  # None: it took no time and is not stored
    index: int = 0  # among the occurrences of its key, by start

    @property
    def start_us(self) -> float:
        """Start of the earliest kernel."""
        return min(piece.start_us for piece in self.pieces)

    @property
    def end_us(self) -> float:
        """End of the latest kernel."""
        return max(piece.end_us for piece in self.pieces)


SampleKey = tuple[RecognisedCall, Direction]
_Place = tuple[RecognisedCall | Unrecognised, int, Direction]
"""Where a kernel belongs: the call, the number of its occurrence, and the direction."""


class AttributedKernel(NamedTuple):
    """A kernel and the call it belongs to; `described` is the recorded metadata of a collective."""

    piece: KernelSpan
    found: RecognisedCall | Unrecognised
    instance: int
    direction: Direction
    described: Arguments | None = None


class UnrecognisedGroup(NamedTuple):
    """Unattributed kernels of one kind; `shapes` are the inputs of `host_operator`."""

    name: str
    category: str
    stream: int
    host_operator: str
    shapes: str
    reason: str


@dataclass(slots=True)
class Extracted:
    """Attributed kernels of a trace, with counts and times (µs)."""

    tree: CallTree
    is_device: bool = True
    pieces: Sequence[AttributedKernel] = ()  # every kernel, by start
    points: dict[SampleKey, list[Occurrence]] = field(
        default_factory=lambda: defaultdict(list)
    )  # by start time
    left: dict[UnrecognisedGroup, tuple[int, float]] = field(default_factory=dict)
    count: int = 0
    total_us: float = 0.0
    attributed_count: int = 0
    attributed_us: float = 0.0
    recognised_count: int = 0
    recognised_us: float = 0.0


def extract(trace: Trace, gpus_per_node: int) -> Extracted:
    """Attribute every kernel of a trace to an occurrence, or to none. 0 GPUs per node: unknown."""
    tree = CallTree(trace)
    if on_device := trace.of_category(*DEVICE_CATEGORIES):
        return _added_up(tree, list(_device_pieces(tree, on_device, trace, gpus_per_node)), is_device=True)
    if _ran_elsewhere(trace, tree):
        return Extracted(tree)
    # Gloo's collectives come after the calls.
    pieces = sorted(_cpu_pieces(tree, trace, gpus_per_node), key=lambda placed: placed.piece.start_us)
    return _added_up(tree, pieces, is_device=False)


def _ran_elsewhere(trace: Trace, tree: CallTree) -> bool:
    """Whether kernels ran on a device that the profiler did not record: the host's calls are then no work."""
    annotated = any(event.name.startswith("nccl:") for event in trace.of_category(ANNOTATION_CATEGORY))
    return bool(tree.launches) or annotated or trace.distributed.get("backend") == "nccl"


def _device_pieces(
    tree: CallTree, kernels: Iterable[Event], trace: Trace, gpus_per_node: int
) -> Iterator[AttributedKernel]:
    operators, annotations = _Operators(tree), _Annotations(trace)
    only = _only_group(trace.distributed.get("pg_config"))
    launched: dict[Launch, Launch] = {}  # each once
    for number, event in enumerate(kernels):
        arguments = arguments_of(event)
        call = tree.launching(event, arguments)
        stream = next((n for n in (whole(arguments.stream), whole(event.tid)) if n is not None), 0)
        duration_us = max(event.duration_us, 0.0)
        end_us = event.start_us + duration_us
        piece = KernelSpan(event.name, event.category, event.start_us, duration_us, end_us, stream, call)
        piece.device = whole(arguments.device) or 0
        if (shape := _launch_of(arguments)) != _NO_LAUNCH:
            piece.launch = launched.setdefault(shape, shape)
        piece.correlation = whole(arguments.correlation)
        launch = None if piece.correlation is None else tree.launches.get(piece.correlation)
        piece.launch_us = None if launch is None else launch.start_us
        if event.category == "kernel" and any(
            part in event.name.lower() for part in ("nccl", "rccl", "msccl")
        ):
            described = arguments if isinstance(arguments.collective, str) else _described(tree, call)
            found = collective(described or arguments, gpus_per_node)
            annotation = None if call is None else annotations.begun_in(tree.calls[call])
            if annotation is not None and not (described and isinstance(described.collective, str)):
                said = arguments_of(annotation)
                base = None if call is None else tree.innermost(_C10D)[call]
                around = None if base is None else tree.arguments[base]
                described = annotated_message(annotation.name, said, only, around)
                found = annotated_collective(annotation.name, said, only, gpus_per_node)
            yield AttributedKernel(piece, found, -1 - number, Direction.ONCE, described)
        elif _DEEP_EP in event.name.lower():
            yield AttributedKernel(piece, DEEP_EP, -1 - number, Direction.ONCE)
        else:
            yield AttributedKernel(piece, *operators.place(call))


def _launch_of(arguments: Arguments) -> Launch:
    occupancy = arguments.occupancy
    moved = whole(arguments.moved_bytes)
    return Launch(
        shapes_text(arguments.grid),
        shapes_text(arguments.block),
        whole(arguments.registers),
        float(occupancy) if type(occupancy) in (int, float) and 0 <= occupancy <= 100 else None,
        moved if moved is not None and moved > 0 else None,
    )


class _Annotations:
    """NCCL's annotations on the host: traces before 2024 have no metadata on its kernels."""

    def __init__(self, trace: Trace) -> None:
        self._by_thread: dict[str, list[Event]] = defaultdict(list)
        for event in trace.of_category(ANNOTATION_CATEGORY):  # by start time, as the trace's events are
            if event.name.startswith(_NCCL):
                self._by_thread[event.thread].append(event)
        self._starts = {thread: [e.start_us for e in events] for thread, events in self._by_thread.items()}

    def begun_in(self, call: Event) -> Event | None:
        """The annotation that begins in a call, on its thread."""
        place = bisect_left(starts := self._starts.get(call.thread, []), call.start_us)
        return (
            self._by_thread[call.thread][place]
            if place < len(starts) and starts[place] <= call.end_us
            else None
        )


def _described(tree: CallTree, call: int | None) -> Arguments | None:
    """The arguments of the call that describes a collective, where the kernel has none."""
    around = None if call is None else tree.innermost(COMMUNICATION_CALL)[call]
    return None if around is None else tree.arguments[around]


def _cpu_pieces(tree: CallTree, trace: Trace, gpus_per_node: int) -> Iterator[AttributedKernel]:
    """The calls of a CPU with self time, and the collectives of gloo's threads."""
    operators, threads = _Operators(tree), dict[str, int]()
    for index, (event, own_us) in enumerate(zip(tree.calls, tree.self_times_us, strict=True)):
        stream = threads.setdefault(tree.threads[index], len(threads))
        if own_us >= RESOLUTION_US:
            yield AttributedKernel(_piece_of(event, own_us, stream, index), *operators.place(index))
    only = _only_group(trace.distributed.get("pg_config"))
    for number, event in enumerate(trace.of_category(ANNOTATION_CATEGORY)):
        if event.name.startswith("gloo:"):
            stream = threads.setdefault(event.thread, len(threads))
            arguments = arguments_of(event)
            found = annotated_collective(event.name, arguments, only, gpus_per_node)
            piece = _piece_of(event, max(event.duration_us, 0.0), stream, None)
            message = annotated_message(event.name, arguments, only)
            yield AttributedKernel(piece, found, -1 - number, Direction.ONCE, message)


def _piece_of(event: Event, own_us: float, stream: int, call: int | None) -> KernelSpan:
    return KernelSpan(event.name, event.category, event.start_us, own_us, event.end_us, stream, call)


def _only_group(groups: Any) -> Sequence[int]:
    """Ranks of the only group that a trace lists; empty where it lists several or none."""
    if not isinstance(groups, list) or len(groups) != 1 or not isinstance(groups[0], dict):
        return ()
    ranks = groups[0].get("ranks")
    return ranks if isinstance(ranks, list) and all(type(rank) is int for rank in ranks) else ()


class _Operators:
    """The recognised calls of a trace."""

    def __init__(self, tree: CallTree) -> None:
        self._tree = tree
        sequences = sequences_of(tree)
        self._found: dict[int, RecognisedCall | Unrecognised] = dict(sequences.values())
        self._around = Surroundings.of(tree, self._found.values())
        # The outermost recognised call around every forward call.
        self._outermost: list[int | None] = []
        for index, (event, parent) in enumerate(zip(tree.calls, tree.parents, strict=True)):
            outermost = None if parent is None else self._outermost[parent]
            if event.name.startswith(NODE_PREFIX) or tree.backward_nodes[index] is not None:
                outermost = None
            elif index in sequences:
                outermost = sequences[index][0]
            elif outermost is None and may_be_operator(event.name):
                outermost = index
            self._outermost.append(outermost)

    def place(self, call: int | None) -> _Place:
        """Where a kernel launched by `call` belongs (on a CPU: where `call` belongs)."""
        if call is None:
            return _NO_CALL, 0, Direction.FORWARD
        node, direction, launched_by = self._tree.backward_nodes[call], Direction.FORWARD, call
        if node is not None:
            direction = Direction.BACKWARD
            call = self._tree.forward_of(node)
            if call is None:
                adds_up = _ACCUMULATION in self._tree.calls[node].name
                return NO_OPERATOR if adds_up else _NO_FORWARD, 0, direction
        outermost = self._outermost[call]
        if outermost is None:
            return NO_OPERATOR, 0, direction
        if outermost not in self._found:
            self._found[outermost] = recognised(
                self._tree.calls[outermost].name, self._tree.arguments[outermost], self._around
            )
        found = self._found[outermost]
        if (
            isinstance(found, RecognisedCall)
            and found.operator == "grouped_gemm"
            and direction is Direction.BACKWARD
        ):
            return self._gradient(found, launched_by, outermost)
        return found, outermost, direction

    def _gradient(self, point: RecognisedCall, call: int | None, instance: int) -> _Place:
        """Which gradient of a product the grouped product around `call` computes."""
        call = None if call is None else self._tree.innermost(GROUPED_MM)[call]
        if call is None:
            return BOTH_GRADIENTS, instance, Direction.BACKWARD
        of_weights = is_weight_gradient(shapes(self._tree.arguments[call].dims))
        return point, instance, Direction.WEIGHT_GRADIENT if of_weights else Direction.INPUT_GRADIENT


def _added_up(tree: CallTree, pieces: Sequence[AttributedKernel], *, is_device: bool) -> Extracted:
    """Collect attributed kernels into occurrences and unrecognised groups; streams of a device run concurrently."""
    tree.forget_launches()  # every kernel has its call by now
    done = Extracted(tree, is_device, pieces)
    occurrences: dict[tuple[int, Direction], tuple[SampleKey, Occurrence]] = {}
    left: list[tuple[KernelSpan, str]] = []
    for piece, found, instance, direction, _ in pieces:
        done.count += 1
        done.total_us += piece.duration_us
        if piece.call is not None:
            done.attributed_count += 1
            done.attributed_us += piece.duration_us
        if isinstance(found, Unrecognised):
            left.append((piece, found.reason))
        else:
            kind = (found, direction)
            piece.occurrence = occurrences.setdefault((instance, direction), (kind, Occurrence()))[1]
            piece.occurrence.pieces.append(piece)
    streams = _Streams([placed.piece for placed in pieces]) if is_device else None
    for kind, occurrence in occurrences.values():
        if occurrence.end_us <= occurrence.start_us:
            left += [(piece, _NO_DURATION.reason) for piece in occurrence.pieces]
            continue
        occurrence.kind = kind
        occurrence.is_overlapped = streams is not None and streams.overlap(occurrence)
        occurrence.pieces.sort(key=lambda piece: piece.start_us)
        done.points[kind].append(occurrence)
        done.recognised_count += len(occurrence.pieces)
        done.recognised_us += sum(piece.duration_us for piece in occurrence.pieces)
    for of_kind in done.points.values():
        of_kind.sort(key=lambda occurrence: occurrence.start_us)
        for index, occurrence in enumerate(of_kind):
            occurrence.index = index
    for piece, reason in left:
        key = _left_key(tree, piece, reason)
        count, total_us = done.left.get(key, (0, 0.0))
        done.left[key] = count + 1, total_us + piece.duration_us
    return done


def _left_key(tree: CallTree, piece: KernelSpan, reason: str) -> UnrecognisedGroup:
    if piece.call is None:
        return UnrecognisedGroup(piece.name, piece.category, piece.stream, "", "", reason)
    shapes = shapes_text(tree.arguments[piece.call].dims)
    return UnrecognisedGroup(
        piece.name, piece.category, piece.stream, tree.calls[piece.call].name, shapes, reason
    )


class _Streams:
    """Busy times of each stream; kernels of one stream run one after another."""

    def __init__(self, pieces: Sequence[KernelSpan]) -> None:
        self._busy: dict[int, tuple[list[float], list[float]]] = {}
        for piece in pieces:  # by start time, as the trace's events are
            starts, ends = self._busy.setdefault(piece.stream, ([], []))
            starts.append(piece.start_us)
            ends.append(max(piece.end_us, ends[-1]) if ends else piece.end_us)

    def overlap(self, occurrence: Occurrence) -> bool:
        """Whether another stream was busy during the occurrence."""
        own = {piece.stream for piece in occurrence.pieces}
        return any(self._is_busy(stream, occurrence) for stream in self._busy.keys() - own)

    def _is_busy(self, stream: int, occurrence: Occurrence) -> bool:
        starts, ends = self._busy[stream]
        last = bisect_left(starts, occurrence.end_us) - 1
        return last >= 0 and ends[last] > occurrence.start_us
