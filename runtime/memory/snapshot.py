"""What torch's allocator held: a snapshot of `torch.cuda.memory._snapshot()` as JSON, or the memory lines of a log of
Megatron-Bridge or Megatron-LM. Pickles are refused unread.
"""

import json
import re
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

from kernelcast.runtime.dataclass import dataclass, field
from kernelcast.runtime.errors import DataError, shown_path
from kernelcast.runtime.small_file import read_small_file

_MOST_BYTES = 1 << 30
_EXPECTED = (
    "JSON as json.dump(torch.cuda.memory._snapshot(), open('snapshot.json', 'w'), default=str) writes it, or a log "
    "with Megatron's lines '[Rank 0] (after 2 iterations) memory' or 'Theoretical memory footprints:'"
)
_CHANGES = {"alloc": -1, "free_completed": 1}
"""What an event of the history adds to the bytes before it."""
_RANK = re.compile(r"\[Rank (\d+)\] \(after \d+ iterations\) memory \((GB|MB)\) *\|(.*?)(?=\[Rank |$)", re.M)
_UNITS = {"GB": (1e9, "mem-{}-gigabytes", "-"), "MB": (1 << 20, "{}", " ")}
"""Bytes and names of Megatron-Bridge (train_utils.py, `report_memory`) and of Megatron-LM."""
_LOGGED = (("max", "allocated"), ("max", "reserved"), ("allocated",))
_THEORETICAL = re.compile(r"Theoretical memory footprints: (.*)")
_FOOTPRINT = re.compile(r"([a-z ]+)=([\d.]+) (MB|GB)", re.A)
_THEORETICAL_PARTS = ("weight and optimizer", "activation", "total")
_FOOTPRINT_BYTES = {"MB": 1 << 20, "GB": 1 << 30}
"""Its theoretical_memory_utils.py counts in powers of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Memory of the fullest device of a snapshot, of a log the fullest rank: allocated at the end, at most, and
    reserved; None where a log has no such line. `theoretical` are the parts of Megatron's own formula.
    """

    device: int | None = None
    allocated_bytes: int | None = None
    largest_bytes: int | None = None
    reserved_bytes: int | None = None
    theoretical: Mapping[str, int] = field(default_factory=dict)


def read_snapshot(path: Path) -> Snapshot:
    """Add up the blocks of a snapshot's segments by their state, or take the largest figures of a log. DataError where
    the file cannot be read, or is no such JSON or log; a pickle could run any code, and is never loaded.
    """
    where = shown_path(path)
    content = read_small_file(path, where=where, most_bytes=_MOST_BYTES, expected=_EXPECTED)
    if content[:1] == b"\x80" or content[:2] == b"PK":
        raise DataError(
            f"{where}: is a pickle, which could run any code and is not loaded, expected {_EXPECTED}"
        )
    try:
        return _of_segments(content) if content.lstrip()[:1] == b"{" else _of_log(content.decode())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise DataError(f"{where}: is no snapshot of memory, expected {_EXPECTED}") from error


def _of_segments(content: bytes) -> Snapshot:
    values = json.loads(content)
    held: dict[int, list[int]] = {}
    for segment in values["segments"]:
        of_device = held.setdefault(int(segment["device"]), [0, 0])
        of_device[0] += sum(
            int(block["size"]) for block in segment["blocks"] if block["state"] == "active_allocated"
        )
        of_device[1] += int(segment["total_size"])
    device, (allocated, reserved) = max(held.items(), key=lambda one: one[1])
    traces = values.get("device_traces") or []
    history = traces[device] if device < len(traces) else []
    # The history ends with the snapshot: what was allocated before an event follows from what was after it.
    changes = [_CHANGES.get(one["action"], 0) * int(one.get("size", 0)) for one in reversed(history)]
    return Snapshot(
        device=device,
        allocated_bytes=allocated,
        largest_bytes=max(accumulate(changes, initial=allocated)),
        reserved_bytes=reserved,
    )


def _of_log(text: str) -> Snapshot:
    """Of the rank that had most allocated, the last line: maxima only grow. ValueError without a line."""
    ranks: dict[int, list[int]] = {}
    for rank, unit, rest in _RANK.findall(text):
        unit_bytes, name, between = _UNITS[unit]
        sizes = {one.strip(): size for one, _, size in (part.partition(":") for part in rest.split("|"))}
        ranks[int(rank)] = [
            round(float(sizes[name.format(between.join(words))]) * unit_bytes) for words in _LOGGED
        ]
    theoretical = dict.fromkeys(_THEORETICAL_PARTS, 0)
    lines = _THEORETICAL.findall(text)
    for name, size, unit in _FOOTPRINT.findall(lines[-1] if lines else ""):
        # One part, or one of dense weights, embeddings and experts each.
        part = name.strip() if name.strip() in _THEORETICAL_PARTS else _THEORETICAL_PARTS[0]
        theoretical[part] += round(float(size) * _FOOTPRINT_BYTES[unit])
    theoretical = {name: size for name, size in theoretical.items() if size}
    if not ranks:
        if not theoretical:
            raise ValueError("no line with memory")
        return Snapshot(theoretical=theoretical)
    rank, (largest, reserved, allocated) = max(ranks.items(), key=lambda one: one[1])
    return Snapshot(
        device=rank,
        allocated_bytes=allocated,
        largest_bytes=largest,
        reserved_bytes=reserved,
        theoretical=theoretical,
    )
