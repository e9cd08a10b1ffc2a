"""Communicators of layouts, and their buffers."""

from typing import Any

import numpy as np
import pytest

from kernelcast.runtime import Parallelism
from kernelcast.runtime.memory.working import communicator_bytes
from kernelcast.runtime.step.layouts import Layouts
from tests.runtime.memory.test_breakdown import ONE

EP = {"dp": 8, "ep": 4}
MIB = 1 << 20


def found(**fields: Any) -> dict[str, int]:
    sizes = communicator_bytes(Layouts.of(Parallelism(**ONE | fields)))
    return {name: int(size[0]) for name, size in sizes.items() if size[0]}


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
    assert tuple(found(**fields)) == groups


def test_sizes() -> None:
    assert found(tp=2, dp=8) == {"tp": 342 * MIB, "dp": 392 * MIB}
    # Experts exchange with every peer of a node, by 32 channels of 12 MiB, unless a dispatcher of its own does.
    assert found(**EP)["ep"] == (392 + 3 * 32 * 12) * MIB
    assert found(dp=64, ep=64)["ep"] == found(dp=8, ep=8)["ep"] == (392 + 7 * 32 * 12) * MIB
    assert found(**EP, expert_dispatcher="deepep")["ep"] == 392 * MIB
    exchanged = {"tp": 4, "cp": 4, "context_exchange": "all_to_all"}
    assert found(**exchanged)["cp"] == (392 + 32 * 12) * MIB  # of 8 devices two have the same part of heads
    assert found(**exchanged | {"context_exchange": "ring"})["cp"] == 392 * MIB


def test_many_layouts_as_each_alone() -> None:
    layouts = [Parallelism(**ONE | fields) for fields in ({}, {"tp": 2}, EP, {"dp": 8, "ep": 8, "pp": 2})]
    together = communicator_bytes(
        Layouts(np.concatenate([Layouts.of(one).table for one in layouts]), layouts[0])
    )
    for place, layout in enumerate(layouts):
        alone = communicator_bytes(Layouts.of(layout))
        assert {name: size[place] for name, size in together.items()} == {
            name: size[0] for name, size in alone.items()
        }
