"""Why a point has no time, in one line; flags of times that are doubtful."""

import pytest
import torch

from kernelcast.collector.benches import UnsupportedError
from kernelcast.collector.measuring.harness import Effort
from kernelcast.collector.measuring.outcome import Untimed, sample_of
from kernelcast.runtime.operators import Direction
from kernelcast.store import Repetition, Status

ABOUT = {
    "run_id": "run",
    "operator": "gelu",
    "direction": Direction.FORWARD,
    "dtype": "float32",
    "vector": (1, 2, 3),
}


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (UnsupportedError("no kernel\nstack"), Status.UNSUPPORTED, "no kernel"),
        (NotImplementedError(), Status.UNSUPPORTED, "no reason given"),
        (
            torch.OutOfMemoryError("  tried to allocate\nmore"),
            Status.FAILED,
            "out of memory: tried to allocate",
        ),
        (MemoryError("8 GiB"), Status.FAILED, "out of memory: 8 GiB"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            Status.FAILED,
            "out of memory: DefaultCPUAllocator: can't allocate memory",
        ),
        (ValueError("odd\nmore"), Status.FAILED, "ValueError: odd"),
        (ValueError(), Status.FAILED, "ValueError: "),
        (Untimed(Status.FAILED, "as it was"), Status.FAILED, "as it was"),
    ],
)
def test_an_error_is_a_status_and_its_first_line(error: Exception, status: Status, reason: str) -> None:
    found = Untimed.of(error)
    assert (found.status, found.reason) == (status, reason)
    sample = sample_of(found, Effort(), **ABOUT)
    assert (sample.status, sample.reason, sample.time_us) == (status, reason.strip(), None)


def test_a_stored_reason_has_500_characters_at_most() -> None:
    assert len(sample_of(Untimed(Status.FAILED, "x" * 501), Effort(), **ABOUT).reason) == 500


@pytest.mark.parametrize(("later_us", "flags"), [(10.0, ["given"]), (20.0, ["given", "unstable"])])
def test_halves_that_differ_are_flagged(later_us: float, flags: list[str]) -> None:
    times_us = [10.0] * 10 + [later_us] * 10
    repetitions = [Repetition(index=number, time_us=us) for number, us in enumerate(times_us)]
    sample = sample_of(repetitions, Effort(), (("given", "why"),), **ABOUT)
    assert [name for name, _ in sample.flags] == flags
    if len(flags) > 1:
        assert sample.flags[1][1].startswith("quiet times of the halves of 20 repetitions are ")
