"""Layers per stage and chunk, by hand: equal ones, or n + 5 blocks spread evenly, 2 and 3 of them not layers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import Parallelism, UsageError
from kernelcast.runtime.step.chunks import layers_of_chunks, partition


@pytest.mark.parametrize(
    ("layers", "pp", "expected"),
    [
        (44, 4, (11, 12, 12, 9)),  # 49 blocks: 13, 12, 12, 12
        (44, 8, (5, 6, 6, 6, 6, 6, 6, 3)),  # 49 blocks: 7, then 6 each
        (40, 4, (10, 11, 11, 8)),  # 45 blocks: 12, 11, 11, 11
        (32, 4, (8, 9, 9, 6)),  # 37 blocks: 10, 9, 9, 9
        (4, 2, (3, 1)),  # 9 blocks: 5, 4
        (7, 1, (7,)),
        (1, 1, (1,)),
        (1, 2, (1, 0)),  # 6 blocks: 3, 3; the last stage has norm, logits and loss only
        (4, 3, (1, 3, 0)),
    ],
)
def test_stage_sizes(layers: int, pp: int, expected: tuple[int, ...]) -> None:
    assert partition(layers, pp, layer_split="paper") == expected
    # Equal stages where there are any: the default.
    even = (layers // pp,) * pp if layers % pp == 0 else expected
    assert partition(layers, pp) == partition(layers, pp, layer_split="even") == even


def test_virtual_stages_must_divide_the_layers_for_equal_chunks() -> None:
    assert partition(48, 16) == (3,) * 16
    assert partition(48, 4, 3) == (4,) * 12
    assert partition(44, 4, 3) == partition(44, 4, 3, "paper") != (4,) * 12
    assert partition(16, 4, 4) == (1,) * 16


@pytest.mark.parametrize(("layers", "pp", "most"), [(44, 45, 44), (1, 3, 2), (40, 0, 40), (2, 3, 2)])
def test_stages_that_do_not_fit_are_refused(layers: int, pp: int, most: int) -> None:
    with pytest.raises(UsageError, match=rf"^pp is {pp}, expected from 1 to {most} for {layers} layers$"):
        partition(layers, pp)


def test_many_stages_share_the_layers_alone() -> None:
    # 49 blocks on 20 stages would leave 2 for the last: 2 layers each, the other 4 after the first stage.
    assert partition(44, 20) == (2, 3, 3, 3, 3, *[2] * 15)
    assert partition(44, 44) == (1,) * 44
    assert partition(128, 64) == (2,) * 64


def test_chunks_of_virtual_stages() -> None:
    # 49 blocks on 8 chunks: 7, then 6 each; 2 and 3 of them are not layers.
    assert partition(44, 4, 2) == (5, 6, 6, 6, 6, 6, 6, 3)
    assert partition(96, 8, 12) == (1,) * 96
    with pytest.raises(
        UsageError, match=r"^pp · virtual_stages \(8 · 12\) is 96, expected from 1 to 44 for 44 lay"
    ):
        partition(44, 8, 12)


@given(st.integers(1, 300), st.integers(1, 120), st.integers(1, 3))
def test_stages_sum_to_all_layers(layers: int, pp: int, virtual_stages: int) -> None:
    chunks = pp * virtual_stages
    if chunks > max(layers, (layers + 5) // 3):
        with pytest.raises(UsageError):
            partition(layers, pp, virtual_stages)
        return
    counts = partition(layers, pp, virtual_stages, "paper")
    assert len(counts) == chunks
    assert sum(counts) == layers
    assert min(counts) >= 0
    blocks = list(counts)
    if chunks <= (layers + 5) // 3:
        blocks[0] += 2
        blocks[-1] += 3
        assert blocks == sorted(blocks, reverse=True)
    assert max(blocks) - min(blocks) <= 1


def test_layers_given_by_hand() -> None:
    layout: dict[str, Any] = {"pp": 2, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 2}
    assert layers_of_chunks(44, Parallelism(**layout)) == (22, 22)
    assert layers_of_chunks(44, Parallelism(**layout, layer_split="paper")) == (23, 21)
    assert layers_of_chunks(44, Parallelism(**layout, layer_counts=(20, 24))) == (20, 24)
    chunks = Parallelism(**layout, schedule="interleaved", virtual_stages=2)
    assert layers_of_chunks(44, chunks) == (11,) * 4
    given = Parallelism(**layout, layer_counts=(20, 24), layer_split="paper")
    assert layers_of_chunks(44, given) == (20, 24)
