"""Passes through the blocks of a chunk, added up by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime.step.chunk_times import BlockTimes, ChunkTimes, chunk_times


def block(
    forward: float,
    backward: float,
    weight: float = 0,
    gather: float = 0,
    scatter: float = 0,
    forward_link: float = 0,
    backward_link: float = 0,
) -> BlockTimes:
    return BlockTimes(
        forward_us=np.array([forward]),
        backward_us=np.array([backward]),
        weight_us=np.array([weight]),
        gather_us=np.array([gather]),
        scatter_us=np.array([scatter]),
        forward_link_us=np.array([forward_link]),
        backward_link_us=np.array([backward_link]),
    )


def passes(
    first: BlockTimes | None,
    layer: BlockTimes,
    layers: int,
    last: BlockTimes | None,
    *,
    sharded: bool = False,
    split: bool = False,
    exposed_share: float = 0.0,
) -> tuple[float, float, float]:
    ends = [(end, 1) if end is not None else (layer, 0) for end in (first, last)]
    found: ChunkTimes = chunk_times(
        [ends[0], (layer, layers), ends[1]],
        sharded=sharded,
        split=split,
        exposed_share=exposed_share,
    )
    return float(found.forward_us[0]), float(found.backward_us[0]), float(found.weight_us[0])


def test_blocks_add_up() -> None:
    first, layer, last = block(1, 2), block(10, 20), block(100, 200)
    assert passes(first, layer, 3, last) == (131, 262, 0)
    assert passes(None, layer, 3, None) == (30, 60, 0)
    assert passes(first, layer, 0, last) == (101, 202, 0)
    assert passes(None, layer, 0, None) == (0, 0, 0)


def test_weight_gradients_apart() -> None:
    assert passes(block(1, 2), block(10, 20, 8), 3, block(100, 200, 50), split=True) == (131, 188, 74)


def test_gathers_overlapped_with_computing() -> None:
    # Forward: 4 alone, then embedding | a layer's 7 ("|": overlapped with), layers | 7, 7 and the logits' 50, logits.
    first, layer, last = block(1, 2, 0, 4, 3), block(10, 20, 0, 7, 25), block(100, 200, 0, 50, 5)
    # Backward: 50 alone; logits (200) | 7; the layer after it | 7 + 5, one | 7 + 25 and one | 4 + 25; the embedding
    # (2) | 25; its own 3 alone.
    expected = (4 + 7 + 10 + 10 + 50 + 100, 50 + 200 + 20 + 32 + 29 + 25 + 3, 0)
    assert passes(first, layer, 3, last, sharded=True) == expected


def test_gathers_with_weight_gradients_apart() -> None:
    layer = block(10, 20, 8, 7, 25)
    # Forward 7 + 10 + 10; input part 7 + 12 + 12; weight part 8 alone, 8 | 25, 25 alone.
    assert passes(None, layer, 2, None, sharded=True, split=True) == (27, 31, 58)


def test_collectives_slow_down_the_compute_they_overlap() -> None:
    first, layer, last = block(1, 2, 0, 4, 4), block(10, 20, 0, 8, 24), block(100, 200, 0, 48, 8)
    # A half of the time of overlapped collectives is added to a block, up to where only the network counts.
    forward = 4 + 8 + (10 + 4) + (10 + 4) + 48 + 100
    backward = 48 + (200 + 4) + (20 + 8) + (20 + 16) + (20 + 14) + 24 + 4
    assert passes(first, layer, 3, last, sharded=True, exposed_share=0.5) == (forward, backward, 0)
    # Nothing overlaps with blocks that are not sharded.
    assert passes(first, layer, 3, last, exposed_share=0.5) == (131, 262, 0)


def test_own_collectives_share_the_links_of_gathers() -> None:
    layer = block(10, 20, 8, 7, 25, forward_link=4, backward_link=6)
    # Forward: 7 alone, 7 | the 6 of 10 that use no link, 10. Backward: 7 alone, 7 | 14 of 20, 25 | 14 and 6 by
    # themselves, 25 alone.
    assert passes(None, layer, 2, None, sharded=True) == (7 + 11 + 10, 7 + 20 + 31 + 25, 0)
    # The input part has all of them: 7 alone, 7 | 6 of 12, 12; then weights, 8 alone, 25 | 8, 25 alone.
    assert passes(None, layer, 2, None, sharded=True, split=True) == (28, 7 + 13 + 12, 58)


def one_after_the_other(times: list[tuple[float, float, float, float]], exposed_share: float) -> float:
    """The same, block by block."""
    total = times[0][1]
    for index, (compute, _, _, link) in enumerate(times):
        beside = times[index + 1][1] if index + 1 < len(times) else 0.0
        beside += times[index - 1][2] if index else 0.0
        total += max(compute + exposed_share * beside, beside + min(link, compute))
    return total + times[-1][2]


time = st.integers(0, 100).map(float)
shares = st.sampled_from((0.0, 0.25, 0.5, 1.0))  # without a rest, in whichever order sums are taken
kinds = st.builds(block, time, time, st.just(0.0), time, time, time, time)


@given(first=st.none() | kinds, layer=kinds, layers=st.integers(1, 12), last=st.none() | kinds, share=shares)
def test_long_runs_as_block_by_block(
    first: BlockTimes | None, layer: BlockTimes, layers: int, last: BlockTimes | None, share: float
) -> None:
    blocks = [*([first] if first else []), *[layer] * layers, *([last] if last else [])]
    forward = [
        (float(b.forward_us[0]), float(b.gather_us[0]), 0.0, float(b.forward_link_us[0])) for b in blocks
    ]
    backward = [
        (
            float(b.backward_us[0]),
            float(b.gather_us[0]),
            float(b.scatter_us[0]),
            float(b.backward_link_us[0]),
        )
        for b in reversed(blocks)
    ]
    expected = (one_after_the_other(forward, share), one_after_the_other(backward, share), 0)
    assert passes(first, layer, layers, last, sharded=True, exposed_share=share) == expected


@pytest.mark.parametrize("sharded", [False, True])
def test_many_configurations_at_once(sharded: bool) -> None:
    first, layer, last = block(1, 2, 0, 4, 3), block(10, 20, 0, 7, 25), block(100, 200, 0, 50, 5)
    wide = [
        BlockTimes(
            forward_us=np.repeat(b.forward_us, 2) * [1, 2],
            backward_us=np.repeat(b.backward_us, 2) * [1, 2],
            weight_us=np.repeat(b.weight_us, 2),
            gather_us=np.repeat(b.gather_us, 2) * [1, 2],
            scatter_us=np.repeat(b.scatter_us, 2) * [1, 2],
            forward_link_us=np.repeat(b.forward_link_us, 2) * [1, 2],
            backward_link_us=np.repeat(b.backward_link_us, 2) * [1, 2],
        )
        for b in (first, layer, last)
    ]
    both = chunk_times([(wide[0], 1), (wide[1], 5), (wide[2], 1)], sharded=sharded, split=False)
    forward, backward, _ = passes(first, layer, 5, last, sharded=sharded)
    assert both.forward_us.tolist() == [forward, 2 * forward]
    assert both.backward_us.tolist() == [backward, 2 * backward]
