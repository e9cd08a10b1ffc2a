"""The slowest chunk is as short as the best of all cuts, and no cut as good is more even."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime.step.chunks import balanced_ends, with_ends


def slowest(counts: tuple[int, ...], first: float, last: float) -> float:
    return max(counts[0] + first, *counts[1:-1], counts[-1] + last)


def spread(counts: tuple[int, ...], first: float, last: float) -> float:
    return (counts[0] + first) ** 2 + (counts[-1] + last) ** 2 + sum(count**2 for count in counts[1:-1])


def all_cuts(layers: int, chunks: int) -> list[tuple[int, ...]]:
    ends = product(range(layers + 1), repeat=2)
    return [with_ends(layers, chunks, a, z) for a, z in ends if layers - a - z >= chunks - 2]


# Ends that differ by less than sums of times are exact to are equal.
_SIZES = st.one_of(st.floats(0, 3), st.floats(0, 40)).map(lambda size: round(size, 6))
ends = st.one_of(_SIZES, st.just(0.0), st.integers(0, 5).map(float))


@given(layers=st.integers(1, 24), chunks=st.integers(2, 9), rows=st.lists(st.tuples(ends, ends), min_size=1))
def test_no_cut_has_a_shorter_slowest_chunk(
    layers: int, chunks: int, rows: list[tuple[float, float]]
) -> None:
    if layers < chunks:
        return
    first, last = np.array(rows).T
    found = balanced_ends(layers, chunks, first, last)
    for (a, z), own_first, own_last, said in zip(rows, *found, strict=True):
        counts = with_ends(layers, chunks, int(own_first), int(own_last))
        assert sum(counts) == layers
        assert min(counts) >= 0
        assert min(counts[1:-1], default=1) >= 1
        own = slowest(counts, a, z)
        cuts = [one for one in all_cuts(layers, chunks) if chunks > 2 or sum(one) == layers]
        shortest = min(slowest(one, a, z) for one in cuts)
        assert own == pytest.approx(shortest, rel=1e-12)
        assert said == pytest.approx(own)
        # Of those as short it is the most even one; of several, the one with the fewest layers on the first stage.
        near = [one for one in cuts if slowest(one, a, z) <= shortest * (1 + 1e-12)]
        most_even = min(spread(one, a, z) for one in near)
        even = [one for one in near if spread(one, a, z) <= most_even * (1 + 1e-9)]
        assert counts[0] == min(one[0] for one in even)
        assert counts in even


def test_a_loss_of_two_layers_takes_two_from_the_last_stage() -> None:
    # (32 + 0 + 2) / 4 = 8.5: three stages of 8 or 9, and 6 or 7 with the loss; 9 is the least possible maximum.
    [first], [last], [time] = balanced_ends(32, 4, np.array([0.0]), np.array([2.0]))
    assert (first, last, time) == (8, 7, 9)
    assert with_ends(32, 4, first, last) == (8, 8, 9, 7)


def test_an_end_longer_than_all_others_has_no_layers() -> None:
    [first], [last], [time] = balanced_ends(12, 4, np.array([0.1]), np.array([9.0]))
    assert (first, last, time) == (4, 0, 9)


def test_nothing_to_balance() -> None:
    [first], [last], [time] = balanced_ends(32, 4, np.array([0.0]), np.array([0.0]))
    assert with_ends(32, 4, first, last) == (8, 8, 8, 8)
    assert time == 8
