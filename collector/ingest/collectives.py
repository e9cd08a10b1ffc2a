"""Collectives of a real run: their messages, and the layout of their group over nodes and devices."""

import json
import re
import tomllib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from kernelcast.collector.ingest.recognised_calls import DTYPES, NO_TYPE, RecognisedCall, Unrecognised
from kernelcast.collector.traces.arguments import Arguments, shapes, texts, whole
from kernelcast.collector.traces.events import ANNOTATION_CATEGORY, Event
from kernelcast.collector.traces.kineto import Trace
from kernelcast.runtime.operators import OPERATORS

_NCCL = ("nccl:", "rccl:")

_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_NAMES: Mapping[str, str] = _DATA["operators"]
_ROLES = [(frozenset(words.split()), role) for words, role in _DATA["roles"].items()]
_NOT_RECORDED = Unrecognised("a collective whose size and group were not recorded")
_UNEVEN = Unrecognised("an all-to-all that may send more to one process than to another")
_LAYOUT = Unrecognised("a collective whose group's layout on nodes is not known (--gpus-per-node)")


def collective(arguments: Arguments, gpus_per_node: int) -> RecognisedCall | Unrecognised:
    """Recognise a collective by its metadata; `gpus_per_node` is 0 where unknown."""
    if not isinstance(arguments.collective, str):
        return _NOT_RECORDED
    kind = _NAMES.get(arguments.collective)
    if kind is None:
        return Unrecognised(f"no operator for {arguments.collective[:40]}")
    elements, ranks = whole(arguments.elements_in), group_ranks(arguments)
    if elements is None or elements < 1 or ranks is None:
        return _NOT_RECORDED
    if kind == "all_to_all" and not _is_even(arguments, elements, len(ranks)):
        return _UNEVEN
    found = _point(kind, elements, DTYPES.get(str(arguments.dtype), ""), ranks, gpus_per_node)
    return (
        found
        if isinstance(found, Unrecognised)
        else replace(found, role=role_of(kind, arguments.group_description))
    )


def role_of(kind: str, description: object) -> str:
    """The role of a collective by its group's name, as in Megatron-core and DeviceMesh; empty where unknown."""
    words = set(re.split("[^a-z]+", description.lower())) if isinstance(description, str) else set()
    roles = [role for name, role in _ROLES if words >= name]
    return roles[0] if roles and roles[0] in OPERATORS[kind].roles else ""


def kind_of(name: str) -> str:
    """The table's collective for a trace's `name`; empty where it has none."""
    return _NAMES.get(name, "")


def annotated_collective(
    name: str, arguments: Arguments, only_group: Sequence[int], processes_per_node: int
) -> RecognisedCall | Unrecognised:
    """Recognise a collective by an annotation (`gloo:all_reduce`, `nccl:all_reduce`), its input and the only group."""
    kind = _NAMES.get(name.partition(":")[2])
    if kind is None:
        return Unrecognised(f"no operator for {name[:40]}")
    if kind == "all_to_all":  # the same name with and without splits, which are not recorded
        return _UNEVEN
    elements = _elements(arguments)
    if elements is None:
        return _NOT_RECORDED
    if not only_group:
        return Unrecognised("a collective whose group was not recorded")
    dtype = DTYPES.get(next(iter(texts(arguments.types)), ""), "")
    return _point(kind, elements, dtype, only_group, processes_per_node)


def annotated_message(
    name: str, arguments: Arguments, only_group: Sequence[int], call: Arguments | None = None
) -> Arguments | None:
    """An annotation in the form of NCCL's metadata; None where its message was not recorded.

    `call` is the c10d call around it: output and input of a gather or scatter give the group's size.
    """
    elements = _elements(arguments)
    if elements is None:
        return None
    collective_name = name.partition(":")[2]
    kind, size = _NAMES.get(collective_name), len(only_group) or None
    if kind in ("all_gather", "reduce_scatter") and size is None:
        output, source, *_ = (
            (*(prod(shape) for shape in shapes(call.dims) if shape), 0, 0) if call else (0, 0)
        )
        large, small = max(output, source), min(output, source)
        if not small or large % small:
            return None
        size = large // small
    return Arguments(
        collective=collective_name,
        elements_in=elements,
        elements_out=elements * (size or 1) if kind == "all_gather" else elements,
        dtype=next(iter(texts(arguments.types)), ""),
        group_size=size,
        group_ranks=json.dumps(list(only_group)) if only_group else None,
    )


def _elements(arguments: Arguments) -> int | None:
    """Elements of the only input; None where there are several, or none was recorded."""
    sizes = [shape for shape in shapes(arguments.dims) if shape]
    return prod(sizes[0]) if len(sizes) == 1 and prod(sizes[0]) > 0 else None


def _is_even(arguments: Arguments, elements: int, size: int) -> bool:
    """Whether a process sends the same number of elements to each process, and receives the same number from each.

    `all_to_allv` is the call with splits. `all_to_all` also covers lists of tensors, whose sizes are not recorded: then
    only the sums are checked.
    """
    if elements % size or whole(arguments.elements_out) not in (None, elements):
        return False
    if arguments.collective == "all_to_all":
        return True
    splits = [_listed(arguments.split_in), _listed(arguments.split_out)]
    # A side without splits is split evenly. Lists of more than 30 are truncated.
    return any(splits) and all(
        split is not None and (not split or (len(split) == size and len(set(split)) == 1)) for split in splits
    )


def group_ranks(arguments: Arguments) -> Sequence[int] | None:
    """Ranks of the group, from its list or, where that is truncated, from start, stride and size."""
    size = whole(arguments.group_size)
    if listed := _listed(arguments.group_ranks):
        return listed if size in (None, len(listed)) else None
    start, stride = whole(arguments.rank_start), whole(arguments.rank_stride)
    if size is None or not 1 <= size <= 2**20 or start is None or not stride:
        return None
    return range(start, start + size * stride, stride)


def _listed(text: Any) -> list[int] | None:
    """The whole numbers of a text like `[0, 8]`; None for other or truncated texts (`[0, 8, ..., 120]`)."""
    try:
        listed = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return listed if isinstance(listed, list) and all(type(one) is int for one in listed) else None


def layout(ranks: Sequence[int], gpus_per_node: int) -> tuple[int, int] | None:
    """Nodes and devices per node of a group with equal numbers of ranks on every node; ranks fill node by node."""
    if not gpus_per_node:
        return None
    per_node: dict[int, int] = {}
    for rank in ranks:
        per_node[rank // gpus_per_node] = per_node.get(rank // gpus_per_node, 0) + 1
    counts = set(per_node.values())
    return (len(per_node), counts.pop()) if len(counts) == 1 else None


def _point(
    kind: str, elements: int, dtype: str, ranks: Sequence[int], gpus_per_node: int
) -> RecognisedCall | Unrecognised:
    if len(ranks) < 2:
        return Unrecognised("a collective of one process alone")
    if kind == "point_to_point" and len(ranks) != 2:
        return Unrecognised(
            "a transfer inside a group of more than two: between which ranks was not recorded"
        )
    found = layout(ranks, gpus_per_node)
    if found is None:
        return _LAYOUT
    return RecognisedCall(kind, (elements, *found), dtype=dtype) if dtype else NO_TYPE


class Annotations:
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
