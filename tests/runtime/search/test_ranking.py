"""The best few and the Pareto front, against their definitions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime.estimate.layouts import COLUMNS, Layouts
from kernelcast.runtime.search.found import Found
from kernelcast.runtime.search.ranking import Ranked, best_of, front_of, is_dominated

# Few values, so that ties are common.
points = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30)


def ranked(values: list[tuple[int, int]], first: int = 0) -> Ranked:
    table = np.zeros((len(values), len(COLUMNS)), dtype=np.int64)
    table[:, 0] = np.arange(len(values)) + first
    score, memory = (np.array([value[i] for value in values], dtype=np.float64) for i in (0, 1))
    return Ranked(Layouts(table), score, score, memory)


def plain(found: Ranked) -> list[tuple[float, float, int]]:
    return list(
        zip(found.score.tolist(), found.memory_bytes.tolist(), found.layouts["index"].tolist(), strict=True)
    )


@given(points, st.integers(1, 8))
def test_the_best_are_the_first_when_sorted(values: list[tuple[int, int]], count: int) -> None:
    assert plain(best_of(ranked(values), count)) == sorted(plain(ranked(values)))[:count]


@given(points)
def test_nothing_on_the_front_is_dominated_and_nothing_else_is_missing(values: list[tuple[int, int]]) -> None:
    everything = plain(ranked(values))

    def dominated(one: tuple[float, float, int]) -> bool:
        return any(
            other[0] <= one[0] and other[1] <= one[1] and (other[:2] != one[:2] or other[2] < one[2])
            for other in everything
        )

    assert plain(front_of(ranked(values))) == sorted(one for one in everything if not dominated(one))


@given(points, points)
def test_dominated_by_the_front_is_dominated_by_something(
    values: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    score, memory = (np.array([one[i] for one in asked], dtype=np.float64) for i in (0, 1))
    expected = [any(s < a and m <= b for s, m in values) for a, b in asked]
    assert is_dominated(front_of(ranked(values)), score, memory).tolist() == expected


@given(st.lists(points, max_size=4), st.integers(1, 8))
def test_parts_merge_into_what_one_search_finds(parts: list[list[tuple[int, int]]], top: int) -> None:
    whole, several, index = Found(), [], 0
    for part in parts:
        one = Found()
        for found in (whole, one):
            found.add(ranked(part, index), top)
        several.append(one)
        index += len(part)
    merged = Found.merged(several, top)
    assert plain(merged.best) == plain(whole.best)
    assert plain(merged.front) == plain(whole.front)
