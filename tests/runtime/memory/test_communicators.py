"""Communicators of layouts, and their buffers."""

from typing import Any

import pytest

from kernelcast.runtime import Parallelism
from kernelcast.runtime.memory.communicators import communicator_buffers
from tests.runtime.memory.test_breakdown import ONE

EP = {"dp": 8, "ep": 4}


@pytest.mark.parametrize(
    ("fields", "groups"),
    [
        ({}, ()),
        ({"tp": 8}, ("tp",)),
        ({"tp": 8, "pp": 4, "dp": 2}, ("tp", "pp", "dp")),
        ({"cp": 2}, ("cp", "dp")),  # gradients are reduced over cp too
        (EP, ("dp", "ep", "expert dp")),
        ({"dp": 8, "ep": 8}, ("dp", "ep")),
        ({"pp": 4, "micro_batches": 8, "schedule": "dualpipe"}, ("pp", "dp")),  # two copies of the model
    ],
)
def test_groups_of_more_than_one_device(fields: dict[str, Any], groups: tuple[str, ...]) -> None:
    found = communicator_buffers(Parallelism(**ONE | fields))
    assert found.groups == groups
    assert (found.least_bytes > 0) == bool(groups)
    assert found.least_bytes <= found.most_bytes


def test_sizes() -> None:
    one, three = (communicator_buffers(Parallelism(**ONE | more)) for more in ({"tp": 8}, EP))
    assert (one.least_bytes, one.most_bytes) == (392 << 20, 688 << 20)
    assert three.least_bytes == 3 * one.least_bytes
    # Experts exchange with every peer, unless a dispatcher of its own does.
    assert three.most_bytes == 3 * one.most_bytes + 3_280_000_000
    deepep = communicator_buffers(Parallelism(**ONE | EP | {"expert_dispatcher": "deepep"}))
    assert deepep.most_bytes == 3 * one.most_bytes
