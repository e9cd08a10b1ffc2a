"""Layouts: derived sizes, and one line for what is refused."""

from typing import Any

import pytest

from kernelcast.runtime import Cluster, Parallelism, UsageError

LAYOUT: dict[str, Any] = {"pp": 4, "mp": 4, "dp": 8, "micro_batch": 4, "micro_batches": 16}


def test_derived_sizes() -> None:
    layout = Parallelism(**LAYOUT)
    assert layout.world_size == 128
    assert layout.samples_per_update == 512
    assert layout.recompute == "none"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"micro_batch": 0}, "micro_batch is 0, expected a whole number from 1 to 1000000"),
        ({"micro_batches": -1}, "micro_batches is -1, expected a whole number from 1 to 1000000"),
        ({"pp": True}, "pp is True, expected a whole number from 1 to 1000000"),
        ({"mp": 2.0}, "mp is 2.0, expected a whole number from 1 to 1000000"),
        ({"dp": 10**7}, "dp is 10000000, expected a whole number from 1 to 1000000"),
        ({"recompute": "some"}, "recompute is 'some', expected none, selective or full"),
    ],
)
def test_wrong_layouts(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Parallelism(**LAYOUT | change)
    assert str(caught.value) == message


def test_wrong_clusters() -> None:
    with pytest.raises(UsageError, match=r"^gpus_per_node is 0, expected a whole number from 1 to 1000000$"):
        Cluster(gpus_per_node=0)
