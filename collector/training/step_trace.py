"""Attributes every kernel of a traced step to an operator call.

In a forward pass, the mark around a call names its operator (marks.py). In a backward pass, an autograd node carries
the sequence number of its forward call. On a CPU the work is the calls on the main thread; on a GPU it is the kernels,
each attributed to the call that launched it. Work outside any operator keeps its own name.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import get_args

from kernelcast.collector.traces.call_tree import NODE_PREFIX, CallTree
from kernelcast.collector.traces.events import ANNOTATION_CATEGORY, DEVICE_CATEGORIES, Event, Events
from kernelcast.collector.traces.kineto import Trace
from kernelcast.collector.training.marks import (
    BACKWARD,
    FORWARD,
    LAYER,
    LOSS,
    OPERATOR,
    STEP,
    called,
    row_of,
)
from kernelcast.runtime.request.fields import Norm

TENSOR_SUM, LOSS_SUM = called("all_reduce", "tensor"), called("all_reduce", "cross_entropy")
"""Sums over the tensor-parallel group: of activations, and inside the loss."""

_MARK = "kernelcast."
_ACCUMULATE = "AccumulateGrad"
_NORMS = get_args(Norm)
_ADDS = ("aten::add", "aten::add_")
_COLLECTIVE_CALL = "c10d::"
_PASSES = (FORWARD, LOSS, BACKWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Operator call, layer and pass of a span of work, by the indices of their marks.

    `name` is the operator's; for work of no operator (`known` is False) the kernel's.
    """

    name: str = ""
    known: bool = False
    direction: str = "forward"
    call: int = -1
    layer: int = -1
    in_pass: int = -1


@dataclass(frozen=True, slots=True)
class WorkSpan:
    """A span of work of one owner, µs on the trace's clock."""

    owner: Owner
    start_us: float
    end_us: float

    @property
    def time_us(self) -> float:
        """Its length."""
        return self.end_us - self.start_us


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedWork:
    """Spans in order of time, the marks of steps, and the marks of passes by their index in `Owner`.

    `on_device`: the spans are a GPU's kernels, which run later than the marks around their launches.
    """

    spans: tuple[WorkSpan, ...]
    passes: dict[int, Event]
    steps: tuple[Event, ...]
    on_device: bool


def attribute_step(trace: Trace) -> TracedWork:
    """The owners of all work in the marked steps. Consecutive spans of one call are joined, including gaps."""
    tree = CallTree(trace, annotations=(_MARK,))
    steps = [index for index, name in enumerate(tree.names) if name == STEP]
    main = tree.threads[steps[0]] if steps else ""
    owners = _Owners(tree, main)
    kernels = trace.of_category(*DEVICE_CATEGORIES)
    return TracedWork(
        spans=tuple(_joined(owners.of_kernels(kernels) if kernels else owners.of_slices(main))),
        passes={index: event for index, event in enumerate(tree.calls) if event.name in _PASSES},
        steps=tuple(tree.calls[index] for index in steps),
        on_device=bool(kernels),
    )


class _Owners:
    """The owner of every call, and whether it is work; marks only name owners, except marks of collectives."""

    def __init__(self, tree: CallTree, main: str) -> None:
        self._tree, self._main = tree, main
        self._owners: list[Owner] = []
        self._is_work: list[bool] = []
        self._last_node: dict[str, Owner] = {}
        self._met: set[int] = set()
        for index, event in enumerate(tree.calls):
            of = self._of_mark if event.category == ANNOTATION_CATEGORY else self._of_call
            parent = tree.parents[index]
            around = Owner() if parent is None else self._owners[parent]
            owner, is_work = of(index, event, around)
            self._owners.append(owner)
            self._is_work.append(is_work or (parent is not None and self._is_work[parent]))

    def of_slices(self, thread: str) -> Iterator[WorkSpan]:
        """The spans of a CPU thread, in order of time."""
        for index, start_us, end_us in self._tree.slices(thread):
            if self._is_work[index]:
                yield WorkSpan(self._owners[index], start_us, end_us)

    def of_kernels(self, kernels: Events) -> Iterator[WorkSpan]:
        """The kernels of a device, in order of time."""
        for kernel, call in zip(kernels, self._tree.launching(kernels).tolist(), strict=True):
            # Calls inside work are work.
            owner = Owner() if call < 0 or not self._is_work[call] else self._owners[call]
            yield WorkSpan(
                owner if owner.known else replace(owner, name=kernel.name), kernel.start_us, kernel.end_us
            )

    def _of_mark(self, index: int, event: Event, around: Owner) -> tuple[Owner, bool]:
        if event.name == STEP:
            return Owner(), False
        if event.name in _PASSES:
            return Owner(in_pass=index, direction="backward" if event.name == BACKWARD else "forward"), False
        if event.name == LAYER:
            # A layer recomputed in a backward pass belongs to the layer there.
            return (around if around.layer >= 0 else replace(around, layer=index)), False
        name = event.name.removeprefix(OPERATOR)
        is_collective = _is_collective(name)
        direction = "once" if is_collective or around.in_pass < 0 else "forward"
        return replace(around, name=name, known=True, direction=direction, call=index), is_collective

    def _of_call(self, index: int, event: Event, around: Owner) -> tuple[Owner, bool]:
        name = event.name
        if name.startswith(NODE_PREFIX):
            return self._of_node(index, name, around), True
        if name.startswith(_COLLECTIVE_CALL) and around.known and not _is_collective(around.name):
            # One mark contains several sums, each with its own waiting time.
            return replace(around, name=called("all_reduce", around.name), direction="once", call=index), True
        if self._adds_residuals(index, name, around):
            self._met.add(around.call)
            return replace(around, name="residual_add"), True
        return (around if around.known or around.name else replace(around, name=name)), True

    def _of_node(self, index: int, name: str, around: Owner) -> Owner:
        thread = self._tree.threads[index]
        if _ACCUMULATE in name:
            return self._last_node.get(thread, Owner())
        forward = self._tree.forward_of(index, thread=self._main)
        maker = Owner() if forward is None else self._owners[forward]
        if not maker.known:
            maker = Owner(name=name.removeprefix(NODE_PREFIX))
        owner = replace(maker, direction="backward", in_pass=around.in_pass)
        self._last_node[thread] = owner
        return owner

    def _adds_residuals(self, index: int, name: str, around: Owner) -> bool:
        """Whether this call adds two gradients of the residual stream, at the gradient of a norm.

        Only the first addition of a call counts. Further ones belong to the norm: on a CPU, RMSNorm has several nodes.
        """
        parent = self._tree.parents[index]
        return (
            name in _ADDS
            and around.name in _NORMS
            and around.layer >= 0
            and around.call not in self._met
            and parent is not None
            and self._tree.names[parent].startswith(NODE_PREFIX)
        )


def _is_collective(name: str) -> bool:
    row = row_of(name)
    return row is not None and row.is_collective


def _joined(spans: Iterable[WorkSpan]) -> Iterator[WorkSpan]:
    """Consecutive spans of one call joined, from the first start to the last end."""
    current: WorkSpan | None = None
    for span in spans:
        if current is not None and span.owner == current.owner and span.owner.known:
            current = WorkSpan(current.owner, current.start_us, max(current.end_us, span.end_us))
        else:
            if current is not None:
                yield current
            current = span
    if current is not None:
        yield current
