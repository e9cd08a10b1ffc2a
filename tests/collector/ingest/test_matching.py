"""Clocks against each other, by hand: an offset, and a drift where enough instants show one; calls of two ranks."""

from collections.abc import Hashable, Sequence

import numpy as np
import pytest

from kernelcast.collector.ingest.matching import CollectiveCall, RankCalls, _line, matched

TIMES_NS = np.arange(10) * 1e9


@pytest.mark.parametrize(
    ("times_ns", "ahead_ns", "expected"),
    [
        (TIMES_NS, 5e3 + 2e-6 * TIMES_NS, (5e3, 2e-6, 0.0)),
        (TIMES_NS[:9], 5e3 + 2e-6 * TIMES_NS[:9], (13e3, 0.0, 1.4826 * 4e3)),  # too few for a drift
        (TIMES_NS, np.full(10, 7.0), (7.0, 0.0, 0.0)),
        (np.zeros(10), np.arange(10.0), (4.5, 0.0, 1.4826 * 2.5)),  # all at once
        # An instant far off changes neither.
        (TIMES_NS, np.where(TIMES_NS == 3e9, 1e9, 5e3 + 2e-6 * TIMES_NS), (5e3, 2e-6, 0.0)),
    ],
)
def test_a_clock_beside_another(
    times_ns: np.ndarray, ahead_ns: np.ndarray, expected: tuple[float, float, float]
) -> None:
    assert tuple(_line(np.column_stack([times_ns, ahead_ns]))) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def calls_of(
    host: Hashable, ends_ns: Sequence[int], *, lasting_ns: int = 10**6, group: str = "", numbered: bool = True
) -> RankCalls:
    """A rank's all-reduces with numbers, or transfers without, which end at these times."""
    calls = [
        CollectiveCall(
            sequence=place, group=(group,), name="all_reduce" if numbered else "send", size_bytes=8,
            number=place if numbered else None, done_ns=(0, 0, 0), start_ns=end_ns - lasting_ns, end_ns=end_ns,
            is_synchronising=numbered,
        )
        for place, end_ns in enumerate(ends_ns)
    ]  # fmt: skip
    return RankCalls(start_ns=0, host=host, calls=calls)


@pytest.mark.parametrize(
    ("host", "ahead_ns", "offset_ns", "error_ns"),
    [
        # Without a name a host has the first one's clock, unless ends differ by 0.1 ms and three times their error.
        (None, [99_999] * 5, 0, 0),
        (None, [-99_999] * 5, 0, 0),
        (None, [100_000] * 5, 100_000, 0),
        (None, [-100_000] * 5, -100_000, 0),
        (None, [400_000, 500_000, 600_000], 0, 148_260),
        (None, [500_000, 600_000, 700_000], 600_000, 148_260),
        (None, [500_000 - 1] * 5, 499_999, 0),
        ("other", [50_000] * 5, 50_000, 0),
        ("first", [50_000] * 5, 0, 0),
    ],
)
def test_whether_two_ranks_have_one_clock(
    host: Hashable, ahead_ns: list[int], offset_ns: int, error_ns: int
) -> None:
    ends_ns = [10**9 * place for place in range(1, 1 + len(ahead_ns))]
    ahead = [end_ns + ahead for end_ns, ahead in zip(ends_ns, ahead_ns, strict=True)]
    (one, two), numbers, _ = matched([calls_of("first", ends_ns), calls_of(host, ahead)])
    assert one.start_ns - two.start_ns == offset_ns
    assert (one.error_ns, two.error_ns) == (0, error_ns)
    assert numbers[0] == numbers[1] == {place: place for place in range(len(ends_ns))}


def test_clocks_of_hosts_that_only_another_relates() -> None:
    """Of three hosts the second meets both others: offsets add up, errors by their squares."""
    ends_ns = [10**9 * place for place in range(1, 4)]
    second = [end_ns + ahead for end_ns, ahead in zip(ends_ns, (7_000, 10_000, 13_000), strict=True)]
    third = [end_ns + ahead for end_ns, ahead in zip(ends_ns, (26_000, 30_000, 34_000), strict=True)]
    one, two = calls_of("one", ends_ns, group="a"), calls_of("two", second, group="a")
    with_third = calls_of("two", ends_ns, group="b")
    both = RankCalls(start_ns=0, host="two", calls=[
        *two.calls, *(call._replace(sequence=call.sequence + 3) for call in with_third.calls)])  # fmt: skip
    clocks, _, _ = matched([one, both, calls_of("three", third, group="b")])
    starts = [clock.start_ns for clock in clocks]
    assert [starts[0] - start_ns for start_ns in starts] == [0, 10_000, 40_000]
    assert [clock.error_ns for clock in clocks] == [0, round(1.4826 * 3e3), round(1.4826 * 5e3)]


def test_drifts_of_hosts_that_only_another_relates() -> None:
    ends_ns = [10**9 * place for place in range(1, 13)]
    second, third = ([round(end_ns * (1 + ppm * 1e-6)) for end_ns in ends_ns] for ppm in (10, 40))
    of_second = calls_of("two", second, group="a").calls
    more = [call._replace(sequence=call.sequence + 12, group=("b",)) for call in of_second]
    both = RankCalls(start_ns=0, host="two", calls=[*of_second, *more])
    clocks, _, _ = matched([calls_of("one", ends_ns, group="a"), both, calls_of("three", third, group="b")])
    assert [clock.drift for clock in clocks] == pytest.approx([0, -10e-6, -40e-6], rel=1e-3)


@pytest.mark.parametrize(
    ("others", "second", "pairs"),
    [
        # Calls of 1 ms, by their ends in ms. Half of them overlap, if only by an instant: they agree in order.
        ("first", [1, 11, 41, 51], {0: 0, 1: 1, 2: 2, 3: 3}),
        ("first", [2, 12, 41, 51], {0: 0, 1: 1, 2: 2, 3: 3}),
        ("first", [0, 10, 41, 51], {0: 0, 1: 1, 2: 2, 3: 3}),
        # Fewer: by nearest ends, where another call is nearer to the last one.
        ("first", [1, 13, 41, 51], {0: 0, 1: 1, 3: 2}),
        ("first", [1, 9, 41, 51], {0: 0, 1: 1, 3: 2}),
        # Clocks of two hosts, or of one that is not known, tell nothing where names and sizes agree.
        ("other", [1, 13, 41, 51], {0: 0, 1: 1, 2: 2, 3: 3}),
        (None, [1001, 1013, 1041, 1051], {0: 0, 1: 1, 2: 2, 3: 3}),
    ],
)
def test_calls_without_numbers_are_paired(others: Hashable, second: list[int], pairs: dict[int, int]) -> None:
    ends = [1, 11, 21, 31]
    ranks = [
        calls_of(host, [10**6 * end for end in times], numbered=False)
        for host, times in (("first", ends), (others, second))
    ]
    _, (ones, twos), _ = matched(ranks)
    place_of = {number: place for place, number in twos.items()}
    assert {place: place_of[number] for place, number in ones.items()} == pairs


@pytest.mark.parametrize(("apart_ns", "is_one"), [(6_000_000, True), (10_500_000, False)])
def test_ends_without_numbers_differ_by_no_more_than_the_clocks_leave_open(
    apart_ns: int, is_one: bool
) -> None:
    """Ends with numbers tell the clock of b to 5.93 ms; others last one, and one is slack."""
    ranks = []
    for host, away_ns in (("a", 0), ("b", 2_000_000)):
        ends_ns = [number * 10**9 + (away_ns if number % 2 else -away_ns) for number in range(8)]
        own = calls_of(host, ends_ns)
        end_ns = 5 * 10**8 + (apart_ns if host == "b" else 0)
        more = calls_of(host, [end_ns], group="other").calls[0]._replace(number=None, sequence=99)
        ranks.append(RankCalls(start_ns=0, host=host, calls=[*own.calls, more]))
    clocks, numbers, _ = matched(ranks)
    assert [clock[2] for clock in clocks] == [0, 5_930_400]
    assert [99 in own for own in numbers] == [is_one, is_one]
