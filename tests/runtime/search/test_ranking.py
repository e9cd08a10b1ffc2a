"""The best few and the Pareto front, against their definitions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import ModelConfig, Parallelism, UsageError
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.search.partial_result import Counts, Found
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.ranking import Ranked, best_of, front_of, is_dominated
from kernelcast.runtime.search.space import Space
from kernelcast.runtime.step.layouts import COLUMNS, Layouts

# Few values, so that ties are common.
points = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30)


def ranked(values: list[tuple[int, int]], first: int = 0) -> Ranked:
    table = np.zeros((len(values), len(COLUMNS)), dtype=np.int64)
    table[:, 0] = np.arange(len(values)) + first
    score, memory = (np.array([value[i] for value in values], dtype=np.float64) for i in (0, 1))
    return Ranked(Layouts(table, Parallelism.unchecked()), score, score, memory)


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


def test_counts_refusals_problems_and_the_smallest_of_parts_by_hand() -> None:
    parts = []
    for number in (1, 2):
        part = Found()
        for place, name in enumerate(
            ("layouts", "out_of_memory", "unanswered", "evaluated", "simulated", "pruned")
        ):
            setattr(part.counts, name, 10**place * number)
        part.refusals.add(UsageError(field="tp", found=number))
        part.problems = {
            ("gelu", Direction.FORWARD): f"first of {number}",
            (f"op{number}", Direction.ONCE): "own",
        }
        # Needs 5 and 3, then 4 and 3 bytes; the smallest is the earliest with 3.
        table = ranked([(0, 6 - number), (0, 3)], first=10 * number)
        part.look_at_memory(table.layouts, table.memory_bytes)
        parts.append(part)
    found = Found.merged(parts, 4)
    assert found.counts == Counts(
        layouts=3, out_of_memory=30, unanswered=300, evaluated=3000, simulated=30_000, pruned=300_000
    )
    assert found.refusals.by_field["tp"].count == 2
    assert found.problems == {
        ("gelu", Direction.FORWARD): "first of 1",
        ("op1", Direction.ONCE): "own",
        ("op2", Direction.ONCE): "own",
    }
    assert plain(found.smallest) == [(3, 3, 11)]
    assert Found().counts == Counts(
        layouts=0, out_of_memory=0, unanswered=0, evaluated=0, simulated=0, pruned=0
    )


def test_what_may_still_matter_by_hand() -> None:
    model = ModelConfig(
        name="tiny", hidden_size=64, sequence_length=24, attention_heads=8, layers=6, vocabulary_size=100
    )
    space = Space(model=model, gpus=(8,), global_batch=8, gpus_per_node=4)
    found = Found()
    found.add(ranked([(1, 5), (3, 3), (4, 9)]), 2)
    # Of two, the second has a score of 3; with 4 bytes (3, 3) is better than a 4, with 2 bytes nothing is.
    bounded = ranked([(0, 9), (3, 9), (4, 4), (4, 2)])
    assert found.may_matter(Question(space=space, top=2), bounded).tolist() == [True, True, False, True]
    # There is room for a third, but not of the same kind with a step that cannot be shorter.
    assert found.may_matter(Question(space=space, top=3), bounded).all()
    of_one_kind = Question(space=space, top=3, by_kind=True, front=False)
    found.best = best_of(found.best, 3, by_kind=True)
    assert found.may_matter(of_one_kind, bounded).tolist() == [True, False, False, False]
    bounded.layouts.table[2:, 1] = 7
    assert found.may_matter(of_one_kind, bounded).tolist() == [True, False, True, True]
