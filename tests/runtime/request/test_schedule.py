"""How long a step may be to be simulated."""

from contextlib import nullcontext
from typing import Any

import pytest

from kernelcast.runtime import Parallelism, UsageError
from kernelcast.runtime.request.schedule import check_simulated


@pytest.mark.parametrize(
    ("shape", "line"),
    [
        ({"pp": 1024, "micro_batches": 1}, None),
        (
            {"pp": 1025, "micro_batches": 1},
            "pp · virtual_stages is 1025, expected at most 1024 with timeline simulate",
        ),
        (
            {"pp": 513, "micro_batches": 513, "virtual_stages": 2, "schedule": "interleaved"},
            "pp · virtual_stages is 1026, expected at most 1024 with timeline simulate",
        ),
        ({"pp": 4, "micro_batches": 250_000}, None),
        (
            {"pp": 4, "micro_batches": 250_001},
            "micro_batches · pp · virtual_stages is 1000004, expected at most 1000000 with timeline simulate",
        ),
        ({"pp": 5, "micro_batches": 100_000, "virtual_stages": 2, "schedule": "interleaved"}, None),
        (
            {"pp": 5, "micro_batches": 100_005, "virtual_stages": 2, "schedule": "interleaved"},
            "micro_batches · pp · virtual_stages is 1000050, expected at most 1000000 with timeline simulate",
        ),
    ],
)
def test_most_chunks_and_passes(shape: dict[str, Any], line: str | None) -> None:
    layout = Parallelism(tp=1, dp=1, micro_batch=1, **shape)
    with nullcontext() if line is None else pytest.raises(UsageError) as refused:
        check_simulated(layout.chunks, layout.micro_batches)
    assert line is None or str(refused.value) == line
