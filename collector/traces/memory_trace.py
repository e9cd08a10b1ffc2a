"""Measured memory: the most that tensors held at once while something ran, from the profiler's own accounts.

On a CPU, where no allocator counts: every allocation and release passes the profiler.
"""

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from torch.profiler import ProfilerActivity, profile

from kernelcast.runtime.errors import DataError

_MEMORY_EVENT = "[memory]"
_CPU = 0  # torch's number of the device type


def peak_bytes(work: Callable[[], object]) -> int:
    """Most bytes that CPU tensors made during `work` held at once.

    Tensors from before do not count: make models and inputs inside. What `work` returns is still alive when
    the account is closed.

    Raises:
        DataError: the profiler recorded no memory.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = work()
    del result
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = msgspec.json.decode(path.read_bytes())["traceEvents"]
    found = [e for e in events if e.get("name") == _MEMORY_EVENT and e["args"]["Device Type"] == _CPU]
    if not found:
        raise DataError("trace has no memory events, expected some: nothing was allocated")
    return _peak(event["args"] for event in sorted(found, key=lambda event: float(event["ts"])))


def _peak(accounts: Iterable[dict[str, int]]) -> int:
    # torch's own total is off where a block from before is released: it may take it for a longer gone one.
    alive: dict[int, int] = {}
    held = most = 0
    for account in accounts:
        address, size = account["Addr"], account["Bytes"]
        if size > 0:
            alive[address] = size
            held += size
            most = max(most, held)
        else:
            held -= alive.pop(address, 0)
    return most
