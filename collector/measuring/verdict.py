"""What an operator that raised is stored as."""

import torch

from kernelcast.collector.benches import UnsupportedError
from kernelcast.store import Status


def verdict(error: Exception) -> tuple[Status, str]:
    """Status and reason, one line; torch adds its stack to messages, so their first line counts."""
    message = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, UnsupportedError | NotImplementedError):
        return Status.UNSUPPORTED, message
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in message:
        return Status.FAILED, f"out of memory: {message}"
    return Status.FAILED, f"{type(error).__name__}: {message}"
