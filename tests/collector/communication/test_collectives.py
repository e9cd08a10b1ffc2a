"""How much memory a collective is predicted to need, beyond any machine's."""

import re

import pytest

from kernelcast.collector.communication import collectives
from kernelcast.collector.communication.collectives import check_memory
from kernelcast.runtime.operators import OPERATORS


@pytest.mark.parametrize(
    ("name", "size", "processes", "gib"),
    [
        # Twice what is sent and received; a gathered buffer has the entries of the whole group.
        ("all_reduce", 4, 1, 2 * 2 * 2**30),
        ("all_reduce", 4, 3, 3 * 2 * 2 * 2**30),
        ("all_gather", 4, 1, 2 * 5 * 2**30),
        ("all_gather", 2, 2, 2 * 2 * 3 * 2**30),
    ],
)
def test_memory_that_no_node_has(name: str, size: int, processes: int, gib: int) -> None:
    said = f"{processes} process(es) need {gib}.0 GiB on this node, "
    with pytest.raises(MemoryError, match=f"^{re.escape(said)}"):
        check_memory(OPERATORS[name], 2**58, size, 4, processes=processes)
    check_memory(OPERATORS[name], 1, size, 4, processes=processes)


@pytest.mark.parametrize("error", [OSError, ValueError, IndexError])
def test_memory_that_cannot_be_read_is_no_limit(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable() -> int:
        raise error

    monkeypatch.setattr(collectives, "available_memory_bytes", unreadable)
    check_memory(OPERATORS["all_reduce"], 2**58, 4, 4, processes=1)


def test_all_free_memory_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "available_memory_bytes", lambda: 2 * 2 * 1000 * 4)
    check_memory(OPERATORS["all_reduce"], 1000, 4, 4, processes=1)
    with pytest.raises(MemoryError):
        check_memory(OPERATORS["all_reduce"], 1001, 4, 4, processes=1)
