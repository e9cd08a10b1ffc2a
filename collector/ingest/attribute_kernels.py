"""Attributes every kernel of a trace to a recognised call, or to none with a reason.

A forward kernel belongs to the outermost recognised call around its launch; a backward kernel to the forward call that
the autograd node around its launch differentiates.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kernelcast.collector.ingest.collectives import (
    Annotations,
    annotated_collective,
    annotated_message,
    collective,
)
from kernelcast.collector.ingest.experts import (
    BOTH_GRADIENTS,
    DEEP_EP,
    GROUPED_MM,
    is_grouped,
    is_weight_gradient,
)
from kernelcast.collector.ingest.kernel_columns import Launch, Pieces, Places, Rows, distinct
from kernelcast.collector.ingest.occurrences import Extracted, added_up
from kernelcast.collector.ingest.recognise import Surroundings, may_be_operator, recognised
from kernelcast.collector.ingest.recognised_calls import (
    NO_OPERATOR,
    RecognisedCall,
    Recognition,
    Unrecognised,
)
from kernelcast.collector.ingest.sequences import sequences_of
from kernelcast.collector.traces.arguments import Arguments, arguments_of, decoded, shapes, shapes_text, whole
from kernelcast.collector.traces.call_tree import COMMUNICATION_CALL, NODE_PREFIX, CallTree
from kernelcast.collector.traces.events import ANNOTATION_CATEGORY, DEVICE_CATEGORIES, NO_ID, Events, Integers
from kernelcast.collector.traces.kineto import RESOLUTION_US, Trace
from kernelcast.runtime.operators import Direction

_DEEP_EP = "deep_ep"
_C10D = "c10d::"
_NO_CALL = Unrecognised("no operator of the host is recorded for it")
_NO_FORWARD = Unrecognised("backward of an unknown call")
_ACCUMULATION = "AccumulateGrad"


_NO_LAUNCH = Launch()


_COLLECTIVE, _EXCHANGE = 1, 2


def extract(trace: Trace, gpus_per_node: int, tree: CallTree | None = None) -> Extracted:
    """Attribute every kernel of a trace to an occurrence, or to none. 0 GPUs per node: unknown.

    With its tree, a trace needs no events of the host but annotations.
    """
    tree = tree or CallTree(trace)
    if len(on_device := trace.of_category(*DEVICE_CATEGORIES)):
        return added_up(tree, _Kernels(tree, trace, gpus_per_node).attributed(on_device), is_device=True)
    if _ran_elsewhere(trace, tree):
        return Extracted(tree)
    return added_up(tree, _cpu_pieces(tree, trace, gpus_per_node), is_device=False)


def _ran_elsewhere(trace: Trace, tree: CallTree) -> bool:
    """Whether kernels ran on a device that the profiler did not record: the host's calls are then no work."""
    annotated = any(name.startswith("nccl:") for name in trace.of_category(ANNOTATION_CATEGORY).named())
    return bool(len(tree.launches)) or annotated or trace.distributed.get("backend") == "nccl"


class _Kernels:
    """The kernels of a device; what the arguments of many say is read once."""

    def __init__(self, tree: CallTree, trace: Trace, gpus_per_node: int) -> None:
        self._tree, self._gpus_per_node = tree, gpus_per_node
        self._operators, self._annotations = _Operators(tree), Annotations(trace)
        self._only = _only_group(trace.distributed.get("pg_config"))

    def attributed(self, kernels: Events) -> Pieces:
        """The kernels in order."""
        tree, texts = self._tree, kernels.texts
        launch, call = tree.launch_of(kernels), tree.launching(kernels)
        launch_us = np.full(len(kernels), np.nan)
        launch_us[launch >= 0] = tree.launches.start_us[launch[launch >= 0]]
        numbers, argument = np.unique(kernels.arguments, return_inverse=True)
        read = [decoded(texts.arguments[number]) for number in numbers.tolist()]
        launches: dict[Launch | None, int] = {}
        launched = [launches.setdefault(_launch_of(one), len(launches)) for one in read]
        stream = _whole([whole(one.stream) for one in read])[argument]
        threads = _whole([whole(tid) for _, tid in texts.places])[kernels.place]
        stream = np.where(stream == NO_ID, np.where(threads == NO_ID, 0, threads), stream)
        places = Places()
        class_ = np.array([_class_of(*kind) for kind in texts.kinds], dtype=np.intp)[kernels.kind]
        computes, place = class_ == 0, np.zeros(len(kernels), dtype=np.intp)
        instance = -1 - np.arange(len(kernels))
        place[computes], instance[computes] = self._operators.placed(call[computes], places)
        place[class_ == _EXCHANGE] = places.number(DEEP_EP, Direction.ONCE)
        for row in np.flatnonzero(class_ == _COLLECTIVE).tolist():
            around = call.item(row)
            found, described = self._collective(read[argument[row]], None if around < 0 else around)
            place[row] = places.number(found, Direction.ONCE, described)
        return Pieces(
            texts.kinds, list(launches), places.listed, kernels.kind, np.array(launched, dtype=np.int32)[argument],
            place.astype(np.int32), kernels.start_us, kernels.duration_us, kernels.end_us, launch_us, stream,
            np.array([whole(one.device) or 0 for one in read])[argument], call.astype(np.int32), kernels.correlation,
            instance.astype(np.int32),
        )  # fmt: skip

    def _collective(self, arguments: Arguments, call: int | None) -> tuple[Recognition, Arguments | None]:
        """A collective, and its description."""
        tree = self._tree
        described = arguments if isinstance(arguments.collective, str) else _described(tree, call)
        is_described = described is not None and isinstance(described.collective, str)
        annotation = None if is_described or call is None else self._annotations.begun_in(tree.calls[call])
        if annotation is None:
            return collective(described or arguments, self._gpus_per_node), described
        annotated = arguments_of(annotation)
        base = None if call is None else tree.innermost(_C10D)[call]
        around = None if base is None else tree.arguments[base]
        return (
            annotated_collective(annotation.name, annotated, self._only, self._gpus_per_node),
            annotated_message(annotation.name, annotated, self._only, around),
        )


def _class_of(category: str, name: str) -> int:
    """What a kernel does other than computing: `_COLLECTIVE`, `_EXCHANGE` (DeepEP) or 0."""
    name = name.lower()
    if category == "kernel" and any(part in name for part in ("nccl", "rccl", "msccl")):
        return _COLLECTIVE
    return _EXCHANGE if _DEEP_EP in name else 0


def _whole(values: Sequence[int | None]) -> Integers:
    return np.array([NO_ID if value is None else value for value in values], dtype=np.int64)


def _launch_of(arguments: Arguments) -> Launch | None:
    occupancy = arguments.occupancy
    moved = whole(arguments.moved_bytes)
    launch = Launch(
        shapes_text(arguments.grid),
        shapes_text(arguments.block),
        whole(arguments.registers),
        float(occupancy) if type(occupancy) in (int, float) and 0 <= occupancy <= 100 else None,
        moved if moved is not None and moved > 0 else None,
    )
    return None if launch == _NO_LAUNCH else launch


def _described(tree: CallTree, call: int | None) -> Arguments | None:
    """The arguments of the call that describes a collective, where the kernel has none."""
    around = None if call is None else tree.innermost(COMMUNICATION_CALL)[call]
    return None if around is None else tree.arguments[around]


def _cpu_pieces(tree: CallTree, trace: Trace, gpus_per_node: int) -> Pieces:
    """The calls of a CPU with self time, and the collectives of gloo's threads."""
    operators, places, threads = _Operators(tree), Places(), dict[str, int]()
    own_us = np.array(tree.self_times_us)
    rows = np.flatnonzero(own_us >= RESOLUTION_US)
    stream = np.array([threads.setdefault(one, len(threads)) for one in tree.threads], dtype=np.int64)
    place, instance = operators.placed(rows, places)
    only = _only_group(trace.distributed.get("pg_config"))
    messages = trace.of_category(ANNOTATION_CATEGORY)
    messages = messages[messages.where(lambda _, name: name.startswith("gloo:"))]
    named = [(event.name, arguments_of(event), only) for event in messages]
    numbers = [
        places.number(annotated_collective(*one, gpus_per_node), Direction.ONCE, annotated_message(*one))
        for one in named
    ]
    place = np.append(place, np.array(numbers, dtype=np.intp))
    instance = np.append(instance, -1 - np.arange(len(messages)))
    calls, count = tree.calls[rows], len(rows) + len(messages)
    others = np.array([threads.setdefault(one, len(threads)) for one in messages.threads()], dtype=np.int64)
    return Pieces(
        trace.events.texts.kinds, (None,), places.listed, np.concatenate([calls.kind, messages.kind]),
        np.zeros(count, dtype=np.int32), place.astype(np.int32), np.concatenate([calls.start_us, messages.start_us]),
        np.concatenate([own_us[rows], messages.duration_us]), np.concatenate([calls.end_us, messages.end_us]),
        np.full(count, np.nan), np.concatenate([stream[rows], others]),
        np.zeros(count, dtype=np.int64), np.concatenate([rows, np.full(len(messages), -1)]).astype(np.int32),
        np.full(count, NO_ID), instance.astype(np.int32),
    ).by_start()  # fmt: skip


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
        self._found: dict[int, Recognition] = dict(sequences.values())
        self._around = Surroundings.of(tree, self._found.values())
        self._alike: dict[tuple[str, int, str], Recognition] = {}  # by name, arguments and role
        roles: dict[str, int] = {}
        self._roles = np.full(len(tree.parents), -1)
        for call, role in self._around.role_of.items():
            self._roles[call] = roles.setdefault(role, len(roles))
        self._nodes = np.array([-1 if node is None else node for node in tree.backward_nodes], dtype=np.intp)
        is_node = tree.calls.where(lambda _, name: name.startswith(NODE_PREFIX)) | (self._nodes >= 0)
        is_operator = tree.calls.where(lambda _, name: may_be_operator(name)) & ~is_node
        # The outermost recognised call around every forward call, -1 for none.
        outermost: list[int] = np.where(is_operator, np.arange(len(is_operator)), -1).tolist()
        for index, (parent, is_backward) in enumerate(zip(tree.parents, is_node.tolist(), strict=True)):
            if parent is not None and not is_backward and outermost[parent] >= 0:
                outermost[index] = outermost[parent]
            elif index in sequences:
                outermost[index] = sequences[index][0]
        self._outermost = np.array(outermost, dtype=np.intp)

    def placed(self, calls: Rows, places: Places) -> tuple[Rows, Rows]:
        """Where kernels launched by `calls` (-1: by none) belong, and to which occurrence; on a CPU the calls."""
        tree = self._tree
        if not len(self._nodes):
            return np.full(len(calls), places.number(_NO_CALL, Direction.FORWARD)), np.zeros_like(calls)
        nodes, number = np.unique(np.where(calls < 0, -1, self._nodes[calls]), return_inverse=True)
        found = [None if node < 0 else tree.forward_of(node) for node in nodes.tolist()]
        forward = np.array([-1 if one is None else one for one in found], dtype=np.intp)[number]
        is_backward = nodes[number] >= 0
        forward = np.where(is_backward, forward, calls)
        outermost = np.where(forward < 0, -1, self._outermost[forward])
        kind, arguments, role = (
            np.where(outermost < 0, -1, column[outermost])
            for column in (tree.calls.kind, tree.calls.arguments, self._roles)
        )
        # Kernels of equal calls are equal; each sequence is its own kind, and experts' products have two gradients.
        is_own = np.isin(outermost, list(self._found))
        is_own |= (
            is_backward & tree.calls.where(lambda _, name: is_grouped(name))[outermost] & (outermost >= 0)
        )
        own = np.where(is_own, calls, -1)
        lost = np.where(is_backward & (forward < 0), tree.calls.kind[nodes[number]], -1)
        first, alike = distinct(calls < 0, is_backward, lost, kind, arguments, role, own)
        listed = [self._place(*(int(column[row]) for column in (calls, nodes[number], forward, outermost)))
                  for row in first.tolist()]  # fmt: skip
        numbers = np.array([places.number(*one) for one in listed], dtype=np.intp)
        return numbers[alike], np.maximum(outermost, 0)

    def _place(self, call: int, node: int, forward: int, outermost: int) -> tuple[Recognition, Direction]:
        """The recognised call and direction of a kernel launched by `call`, in `node`'s backward pass of `forward`."""
        if call < 0:
            return _NO_CALL, Direction.FORWARD
        direction = Direction.FORWARD if node < 0 else Direction.BACKWARD
        if forward < 0:
            adds_up = _ACCUMULATION in self._tree.names[node]
            return NO_OPERATOR if adds_up else _NO_FORWARD, direction
        if outermost < 0:
            return NO_OPERATOR, direction
        found = self._found.get(outermost)
        if found is None:
            role = self._around.role_of.get(outermost, "")
            key = self._tree.names[outermost], self._tree.calls.arguments.item(outermost), role
            if (found := self._alike.get(key)) is None:
                found = recognised(key[0], self._tree.arguments[outermost], self._around)
                if role and isinstance(found, RecognisedCall):
                    found = replace(found, role=role)
                self._alike[key] = found
        if (
            direction is Direction.BACKWARD
            and isinstance(found, RecognisedCall)
            and found.operator == "grouped_gemm"
        ):
            return self._gradient(found, call)
        return found, direction

    def _gradient(self, point: RecognisedCall, call: int) -> tuple[Recognition, Direction]:
        """Which gradient of a product the grouped product around `call` computes."""
        around = self._tree.innermost(GROUPED_MM)[call]
        if around is None:
            return BOTH_GRADIENTS, Direction.BACKWARD
        of_weights = is_weight_gradient(shapes(self._tree.arguments[around].dims))
        return point, Direction.WEIGHT_GRADIENT if of_weights else Direction.INPUT_GRADIENT
