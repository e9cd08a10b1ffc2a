"""The arguments of an event, and checks of their values: any may be missing or have another type.

Ids differ from event to event, and all other arguments repeat: they are kept apart, and each distinct text once.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import msgspec

from kernelcast.collector.traces.events import (
    DEVICE_CATEGORIES,
    HOST_OPERATOR_CATEGORY,
    NO_ARGUMENTS,
    NO_ID,
    Event,
)


class Arguments(msgspec.Struct, frozen=True, gc=False, rename={
    "dims": "Input Dims", "types": "Input type", "concrete": "Concrete Inputs", "collective": "Collective name",
    "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems", "split_in": "In split size", "split_out": "Out split size",
    "group_size": "Group size", "group_ranks": "Process Group Ranks", "rank_start": "Global rank start",
    "rank_stride": "Global rank stride", "moved_bytes": "bytes",
    "group_name": "Process Group Name", "group_description": "Process Group Description",
    "recorded_number": "Seq", "source_rank": "Src Rank", "destination_rank": "Dst Rank",
    "awaited_stream": "wait_on_stream", "mark_correlation": "wait_on_cuda_event_record_corr_id",
    "registers": "registers per thread", "occupancy": "est. achieved occupancy %",
}):  # fmt: skip
    """The arguments that this package uses, without ids and unchecked."""

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
    moved_bytes: Any = None  # of a copy or a fill
    recorded_number: Any = None  # of a collective in its group
    source_rank: Any = None  # of a transfer between two ranks, in its group
    destination_rank: Any = None
    awaited_stream: Any = None  # of a wait between streams
    mark_correlation: Any = None  # of the call that marked what is awaited
    grid: Any = None  # of a launch
    block: Any = None
    registers: Any = None
    occupancy: Any = None
    finished: Any = None  # False: the recording ended first


_TEXT = msgspec.Raw | msgspec.UnsetType
_IDS = {"external_id": "External id", "old_external_id": "external id", "sequence_number": "Sequence number",
        "correlation": "correlation"}  # fmt: skip
_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(Arguments)} | _IDS
# Most events have few of the fields; the first two announce the others.
_ANY = "collective", "elements_in"
_OF_CALL = *_ANY, "concrete", "types", "dims"
_OF_DEVICE = *_ANY, "stream", "device", "moved_bytes", "grid", "block", "registers", "occupancy"


def _decoder_of(*names: str) -> msgspec.json.Decoder[Any]:
    fields = [
        (name, Any, NO_ID) if name in _IDS else (name, _TEXT, msgspec.UNSET) for name in (*names, *_IDS)
    ]
    return msgspec.json.Decoder(
        msgspec.defstruct("_Used", fields, rename=_NAMES.get, gc=False, omit_defaults=True)
    )


_WHOLE_DECODER = _decoder_of(*(field.name for field in msgspec.structs.fields(Arguments)))
_DECODERS = {
    HOST_OPERATOR_CATEGORY: _decoder_of(*_OF_CALL),
    **dict.fromkeys(DEVICE_CATEGORIES, _decoder_of(*_OF_DEVICE)),
}
_LAUNCH_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    msgspec.defstruct("_Launch", [("correlation", Any, NO_ID)], frozen=True, gc=False)
)
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Arguments)
_NONE = Arguments()
_BEYOND = 2**63
_UNREADABLE = msgspec.MsgspecError, RecursionError


def arguments_of(event: Event) -> Arguments:
    """The event's arguments; empty where they cannot be read."""
    return decoded(event.raw_arguments)


@lru_cache(maxsize=1 << 14)
def decoded(raw_arguments: bytes) -> Arguments:
    """Decode an event's arguments; empty where they cannot be read."""
    try:
        return _DECODER.decode(raw_arguments)
    except _UNREADABLE:
        return _NONE


def divided(raw: msgspec.Raw, category: str) -> tuple[bytes, Any, Any, Any]:
    """The used arguments without ids, and External id, sequence number and correlation id as they are (`id_of`).

    Torch 1.8 wrote External ids of kernels in lower case.
    """
    try:
        used = _DECODERS.get(category, _WHOLE_DECODER).decode(raw)
        if used.collective is not msgspec.UNSET or used.elements_in is not msgspec.UNSET:
            used = _WHOLE_DECODER.decode(raw)
    except _UNREADABLE:
        return NO_ARGUMENTS, NO_ID, NO_ID, NO_ID
    external_id, sequence, correlation = used.external_id, used.sequence_number, used.correlation
    if (external_id is NO_ID or type(external_id) is not int) and category in DEVICE_CATEGORIES:
        external_id = used.old_external_id
    used.external_id = used.old_external_id = used.sequence_number = used.correlation = NO_ID
    return _ENCODER.encode(used), external_id, sequence, correlation


def launch_id(raw: msgspec.Raw) -> Any:
    """The correlation id of a launch, as it is (`id_of`)."""
    try:
        return _LAUNCH_DECODER.decode(raw).correlation
    except _UNREADABLE:
        return NO_ID


def id_of(value: Any) -> int:
    """`value` if it is an id, otherwise `NO_ID`."""
    return value if type(value) is int and -_BEYOND < value < _BEYOND else NO_ID


def whole(value: Any) -> int | None:
    """`value` if it is a whole number of 64 bits, as all of the profiler's are; otherwise None."""
    return value if type(value) is int and -_BEYOND <= value < _BEYOND else None


def shapes(dims: Any) -> tuple[tuple[int, ...], ...]:
    """Shapes of an operator's inputs; `()` for inputs that are no tensor and for impossible shapes."""
    return tuple(_shape(entry) for entry in dims) if isinstance(dims, list) else ()


def shapes_text(dims: Any) -> str:
    """Shapes of an operator's inputs as JSON; empty if not recorded."""
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
