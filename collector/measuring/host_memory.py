"""Keeps freed memory in the process, so that tensors on a CPU reuse it.

glibc returns large freed blocks to the system at once, and the next tensor pays a page fault per 4 KiB: a real step
then takes longer than its operators, by an amount that depends on the allocator's history. A GPU's caching allocator
keeps freed memory as well. The setting is part of the software fingerprint (`SETTING`).
"""

import ctypes
import sys

SETTING = "malloc=keeps freed memory"
"""Its name in the software fingerprint."""

# Parameters of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MOST_MAPPED_BLOCKS = -1, -2, -4
_NEVER = 2**31 - 1
_GROWTH_BYTES = 64 << 20


def keep_freed_memory() -> None:
    """Allocate all further blocks from the heap, which never shrinks; called before any tensor is made on a CPU."""
    if keeps_freed_memory():
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MOST_MAPPED_BLOCKS, 0)
        mallopt(_TRIM_THRESHOLD, _NEVER)
        mallopt(_TOP_PAD, _GROWTH_BYTES)


def keeps_freed_memory() -> bool:
    """Whether `keep_freed_memory` has an effect here."""
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
