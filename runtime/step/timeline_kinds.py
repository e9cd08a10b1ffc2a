"""The two ways from durations to the time of a step: the paper's closed form, or the exact simulation."""

from kernelcast.runtime.errors import UsageError

MAX_SIMULATED_CHUNKS = 1024
MAX_SIMULATED_PASSES = 1_000_000
"""Forward passes of a step. Most schedules repeat early and take no time for more; some repeat late or never."""


def check_simulated(chunks: int, micro_batches: int) -> None:
    """Check that a simulation of a layout with these numbers takes seconds at most.

    Raises:
        UsageError: it has too many chunks, or too many passes.
    """
    passes = micro_batches * chunks
    for name, product, found, most in (
        ("pp", "pp · virtual_stages", chunks, MAX_SIMULATED_CHUNKS),
        ("micro_batches", "micro_batches · pp · virtual_stages", passes, MAX_SIMULATED_PASSES),
    ):
        if found > most:
            expected = f"at most {most} with timeline simulate"
            raise UsageError(field=name, subject=product, found=found, expected=expected)
