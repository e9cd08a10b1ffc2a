"""What is given of a layout, and what contradicts itself."""

from collections.abc import Callable

import pytest

from kernelcast.runtime import UsageError
from kernelcast.runtime.intent.best import OpenRequest

Ask = Callable[..., OpenRequest]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pp": 2, "tp": 2, "dp": 2}, "gpus is 16, expected pp · tp · dp (2 · 2 · 2 = 8)"),
        ({"pp": 4, "tp": 2, "dp": 4}, "gpus is 16, expected pp · tp · dp (4 · 2 · 4 = 32)"),
        ({"tp": 3}, "gpus is 16, expected a multiple of tp (3)"),
        (
            {"dp": 8, "micro_batch": 3},
            "global_batch is 64, expected a multiple of dp · micro_batch (8 · 3 = 24)",
        ),
        (
            {"layer_counts": (16, 16)},
            "layer_counts is given with a search, which spreads the layers itself",
        ),
    ],
)
def test_contradictions_are_refused(ask: Ask, values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        ask(**values)
    assert str(refused.value).startswith(message)


def test_nodes_and_memory_are_asked_only_where_they_are_given(ask: Ask) -> None:
    layout = ask().question.space.layouts
    first = next(layout())
    usual, asked = ask().estimate(first), ask(gpus_per_node=4, gpu_memory_bytes=10**10).estimate(first)
    assert (usual.cluster_source, usual.memory.source) == ("bundle", "bundle")
    assert (asked.cluster_source, asked.memory.source) == ("asked", "asked")
    assert asked.cluster.gpus_per_node == 4
