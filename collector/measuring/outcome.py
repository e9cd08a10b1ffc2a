"""The outcome of measuring a point, repetitions or the reason why there is no time, and the sample that stores it."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import torch

from kernelcast.collector.benches import UnsupportedError
from kernelcast.collector.measuring.harness import Effort, halves_apart, is_stable
from kernelcast.store import Repetition, Sample, Status

Flags = tuple[tuple[str, str], ...]
"""Name and detail of each flag."""


class Flag(StrEnum):
    """Names of the flags that make a sample doubtful."""

    UNSTABLE = "unstable"
    DISTURBED = "disturbed"
    THROTTLED = "throttled"
    POWER_CAPPED = "power capped"
    SHARED_DEVICE = "shared device"


class Untimed(Exception):
    """A point has no time. `reason` is one line, stored with its samples."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason

    @classmethod
    def of(cls, error: Exception) -> "Untimed":
        """Status and reason of an error; of a message only the first line, because torch adds its stack."""
        if isinstance(error, Untimed):
            return error
        message = next(iter(str(error).strip().splitlines()), "")
        if isinstance(error, UnsupportedError | NotImplementedError):
            return Untimed(Status.UNSUPPORTED, message or "no reason given")
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in message:
            return Untimed(Status.FAILED, f"out of memory: {message}")
        return Untimed(Status.FAILED, f"{type(error).__name__}: {message}")


Outcome = Sequence[Repetition] | Untimed


def unstable(repetitions: Sequence[Repetition], effort: Effort) -> Flags:
    """The flag of repetitions that ended without a stable quiet time."""
    if is_stable(repetitions, effort.flagged_beyond):
        return ()
    apart = f"{halves_apart(repetitions):.1%} apart"
    return ((Flag.UNSTABLE, f"quiet times of the halves of {len(repetitions)} repetitions are {apart}"),)


def sample_of(outcome: Outcome, effort: Effort, flags: Flags = (), **details: Any) -> Sample:
    """The sample that stores an outcome; `details` are its other fields."""
    if isinstance(outcome, Untimed):
        return Sample.without_time(status=outcome.status, reason=outcome.reason[:500], **details)
    return Sample.from_repetitions(repetitions=outcome, flags=(*flags, *unstable(outcome, effort)), **details)
