"""Which layers of a chunk run again; what of a layer is in layers/test_calls.py and test_op_laws.py."""

import pytest

from kernelcast.runtime import Parallelism
from kernelcast.runtime.step.recomputation import kept_layers


@pytest.mark.parametrize(
    ("kind", "layers", "of_chunk", "kept"),
    [
        ("full", 0, 4, 0),  # 0: all of them
        ("full", 1, 4, 3),
        ("full", 3, 4, 1),
        ("full", 4, 4, 0),
        ("full", 5, 4, 0),
        ("selective", 1, 4, 0),
        ("none", 1, 4, 0),
    ],
)
def test_layers_that_are_kept_whole(kind: str, layers: int, of_chunk: int, kept: int) -> None:
    layout = Parallelism.unchecked(recompute=kind, recompute_layers=layers)
    assert kept_layers(layout, of_chunk) == kept
