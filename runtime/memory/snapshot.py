"""What torch's allocator held: a snapshot of `torch.cuda.memory._snapshot()` as JSON. Pickles are refused unread."""

import json
from itertools import accumulate
from pathlib import Path

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import DataError, shown_path
from kernelcast.runtime.small_file import read_small_file

_MOST_BYTES = 1 << 30
_EXPECTED = (
    "JSON as json.dump(torch.cuda.memory._snapshot(), open('snapshot.json', 'w'), default=str) writes it"
)
_CHANGES = {"alloc": -1, "free_completed": 1}
"""What an event of the history adds to the bytes before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Memory of the fullest device of a snapshot: allocated at its end, at most in the history that it recorded (as
    allocated, where it has none), and reserved.
    """

    device: int
    allocated_bytes: int
    largest_bytes: int
    reserved_bytes: int


def read_snapshot(path: Path) -> Snapshot:
    """Add up the blocks of a snapshot's segments by their state.

    Raises:
        DataError: the file cannot be read, or is no such JSON; a pickle could run any code, and is never loaded.
    """
    where = shown_path(path)
    content = read_small_file(path, where=where, most_bytes=_MOST_BYTES, expected=_EXPECTED)
    if content[:1] == b"\x80" or content[:2] == b"PK":
        raise DataError(
            f"{where}: is a pickle, which could run any code and is not loaded, expected {_EXPECTED}"
        )
    try:
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
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise DataError(f"{where}: is no snapshot of memory, expected {_EXPECTED}") from error
    return Snapshot(
        device=device,
        allocated_bytes=allocated,
        largest_bytes=max(accumulate(changes, initial=allocated)),
        reserved_bytes=reserved,
    )
