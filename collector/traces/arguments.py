"""The arguments of an event, and checks of their values: any may be missing or have another type."""

import json
from collections.abc import Sequence
from math import prod
from typing import Any

import msgspec

from kernelcast.collector.traces.events import Event


class Arguments(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename={
    "external_id": "External id", "sequence_number": "Sequence number", "dims": "Input Dims", "types": "Input type",
    "concrete": "Concrete Inputs", "collective": "Collective name", "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems", "split_in": "In split size", "split_out": "Out split size",
    "group_size": "Group size", "group_ranks": "Process Group Ranks", "rank_start": "Global rank start",
    "rank_stride": "Global rank stride", "old_external_id": "external id", "moved_bytes": "bytes",
    "group_name": "Process Group Name", "group_description": "Process Group Description",
    "recorded_number": "Seq", "source_rank": "Src Rank", "destination_rank": "Dst Rank",
    "registers": "registers per thread", "occupancy": "est. achieved occupancy %",
}):  # fmt: skip
    """The arguments that this package uses, unchecked."""

    external_id: Any = None
    correlation: Any = None
    sequence_number: Any = None
    stream: Any = None
    device: Any = None
    dims: Any = None
    types: Any = None
    concrete: Any = None
    collective: Any = None
    elements_in: Any = None
    elements_out: Any = None
    split_in: Any = None
    split_out: Any = None
    dtype: Any = None
    group_size: Any = None
    group_ranks: Any = None
    rank_start: Any = None
    rank_stride: Any = None
    group_name: Any = None
    group_description: Any = None
    old_external_id: Any = None  # torch 1.8
    moved_bytes: Any = None  # of a copy or a fill
    recorded_number: Any = None  # of a collective in its group
    source_rank: Any = None  # of a transfer between two ranks, in its group
    destination_rank: Any = None
    grid: Any = None  # of a launch
    block: Any = None
    registers: Any = None
    occupancy: Any = None


class CallIds(msgspec.Struct, frozen=True, gc=False, rename={
    "external_id": "External id", "sequence_number": "Sequence number",
}):  # fmt: skip
    """The ids by which kernels and autograd nodes refer to a call, unchecked; faster to read than `Arguments`."""

    external_id: Any = None
    sequence_number: Any = None


_IDS_DECODER = msgspec.json.Decoder(CallIds)
_NO_IDS = CallIds()
_DECODER = msgspec.json.Decoder(Arguments)
_NONE = Arguments()
_BEYOND = 2**63


def arguments_of(event: Event) -> Arguments:
    """The event's arguments; empty where they cannot be read."""
    try:
        return _DECODER.decode(event.raw_arguments)
    except (msgspec.MsgspecError, RecursionError):
        return _NONE


def call_ids_of(event: Event) -> CallIds:
    """The event's ids as a call; empty where they cannot be read."""
    try:
        return _IDS_DECODER.decode(event.raw_arguments)
    except (msgspec.MsgspecError, RecursionError):
        return _NO_IDS


def trimmed(event: Event) -> bytes:
    """The used arguments as a separate text, because all arguments are most of a large trace."""
    return msgspec.json.encode(arguments_of(event))


def whole(value: Any) -> int | None:
    """`value` if it is a whole number of 64 bits, as all of the profiler's are; otherwise None."""
    return value if type(value) is int and -_BEYOND <= value < _BEYOND else None


def shapes(dims: Any) -> tuple[tuple[int, ...], ...]:
    """Shapes of an operator's inputs; `()` for inputs that are no tensor and for impossible shapes."""
    return tuple(_shape(entry) for entry in dims) if isinstance(dims, list) else ()


def shapes_text(dims: Any) -> str:
    """Shapes of an operator's inputs as JSON; empty where none was recorded."""
    if not isinstance(dims, list) or not any(dims):
        return ""
    try:
        return msgspec.json.encode(dims).decode()
    except (OverflowError, msgspec.MsgspecError, RecursionError):  # whole numbers beyond 64 bits
        return json.dumps(dims, separators=(",", ":"))


def _shape(entry: Any) -> tuple[int, ...]:
    sizes = [whole(size) for size in entry] if isinstance(entry, list) else []
    shape = tuple(size for size in sizes if size is not None and size >= 0)
    # As floats, which saturate at infinity: whole numbers would grow with every size of a damaged list.
    return shape if len(shape) == len(sizes) and prod(map(float, shape)) < _BEYOND else ()


def texts(values: Any) -> Sequence[str]:
    """A list of texts; empty for other values."""
    return [str(value) for value in values] if isinstance(values, list) else []
