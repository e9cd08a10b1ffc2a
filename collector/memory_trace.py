"""Measured memory: the most that tensors held at once while something ran, from the profiler's own accounts.

On a CPU, where no allocator counts: every allocation and release passes the profiler, with the total after it.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import orjson
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
        events = orjson.loads(path.read_bytes())["traceEvents"]
    found = [
        event["args"]
        for event in events
        if event.get("name") == _MEMORY_EVENT and event["args"].get("Device Type") == _CPU
    ]
    if not found:
        raise DataError("trace has no memory events, expected some: nothing was allocated")
    before = found[0]["Total Allocated"] - found[0]["Bytes"]
    return int(max(account["Total Allocated"] for account in found) - before)
