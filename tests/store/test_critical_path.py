"""The longest chain of steps written by hand, whose parts and gains are known, and of random steps, as it was.

WRITE_WHOLE_TEXTS=1 pytest THIS_FILE writes `critical_paths.txt` again.
"""

import os
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.store.critical_path import (
    DELAY,
    FIRST,
    NOT_RECORDED,
    NOTHING,
    PathEvents,
    PathPart,
    critical_path,
)

US = 1000
HOST = ("host", "launching")
A, B, C = ("compute", "a"), ("compute", "b"), ("communication", "all_reduce")
PARTS = [DELAY, FIRST, HOST, A, B, C]


class Event(NamedTuple):
    """A row of `PathEvents`, with parts and launcher by name."""

    rank: int
    stream: int
    start_ns: int
    end_ns: int
    launch_ns: int | None
    part: tuple[str, str]
    collective: int | None
    is_own: bool


def path_of(
    events: Sequence[Event], calls_ns: Mapping[int, Sequence[float]], begin_ns: Mapping[int, float]
) -> list[PathPart]:
    rows = [
        event._replace(
            launch_ns=nan if event.launch_ns is None else event.launch_ns,
            part=PARTS.index(event.part),
            collective=-1 if event.collective is None else event.collective,
        )
        for event in sorted(events, key=lambda event: (event.start_ns, event.end_ns))
    ]
    kinds = (np.intp, np.intp, float, float, float, np.intp, np.intp, bool)
    columns = (np.array([row[place] for row in rows], dtype=kind) for place, kind in enumerate(kinds))
    blocks, launcher = np.zeros(len(rows), dtype=bool), np.full(len(rows), PARTS.index(HOST))
    awaited = np.full(len(rows), NOT_RECORDED)
    return critical_path(PathEvents(*columns, blocks, launcher, awaited), PARTS, calls_ns, begin_ns, top=9)


def event(part: tuple[str, str], start: int, end: int, launch: int | None, stream: int = 7, rank: int = 0,
          collective: int | None = None, is_own: bool = True) -> Event:  # fmt: skip
    return Event(
        rank, stream, start * US, end * US, None if launch is None else launch * US, part, collective, is_own
    )


HOST_BOUND = [event(A, 10, 15, 0), event(B, 110, 115, 100), event(A, 210, 215, 200)]
DEVICE_BOUND = [event(A, 10, 110, 0), event(B, 110, 410, 5), event(A, 411, 511, 8)]
# 60 µs of compute and 100 µs of communication side by side, both before the last kernel: 40 µs are exposed.
SIDE_BY_SIDE = [
    event(A, 10, 20, 0),
    event(B, 20, 80, 1),
    event(C, 20, 120, 2, stream=20),
    event(A, 120, 130, 3),
]
HIDDEN = [event(A, 10, 20, 0), event(C, 20, 60, 1, stream=20), event(B, 20, 100, 2), event(A, 100, 110, 3)]
# The host reads the result of `a`, then launches `b`.
SYNCHRONISED = [event(A, 10, 310, 0), event(B, 350, 360, 340)]
# Rank 1 computes 50 µs longer before the collective.
RANKS = [
    event(A, 10, 60, 0), event(C, 60, 130, 1, 20, collective=1), event(B, 130, 140, 2),
    event(A, 10, 110, 0, rank=1), event(C, 110, 130, 1, 20, rank=1, collective=1), event(B, 130, 135, 2, rank=1),
]  # fmt: skip
# The host waits for what was launched before the recording.
LAUNCHED_BEFORE = [event(B, 90, 450, None, is_own=False), event(A, 510, 520, 500)]
LATE_DATA = [event(A, 0, 5, None, is_own=False), event(A, 510, 520, 500)]


@pytest.mark.parametrize(
    ("events", "waits_us", "expected"),
    [
        (HOST_BOUND, [], {HOST: (200, 100), DELAY: (10, 5), A: (5, 2.5)}),
        (DEVICE_BOUND, [], {B: (300, 150), A: (200, 100), DELAY: (11, 0.5 + 5)}),
        (SIDE_BY_SIDE, [], {C: (100, 40), A: (20, 10), DELAY: (10, 5)}),
        (HIDDEN, [], {B: (80, 40), A: (20, 10), DELAY: (10, 5)}),
        (SYNCHRONISED, [305], {A: (300, 150), HOST: (30, 15), DELAY: (20, 5 + 5), B: (10, 5)}),
        (SYNCHRONISED, [30], {HOST: (340, 40), DELAY: (10, 5), B: (10, 5)}),  # no call waited as long, `a` ends at 310
        (RANKS, [], {A: (100, 50), C: (20, 10), DELAY: (10, 5), B: (10, 5)}),
        (LATE_DATA, [], {FIRST: (400, 200), DELAY: (10, 5), A: (10, 5)}),
        (LAUNCHED_BEFORE, [340], {FIRST: (50, 25), DELAY: (10, 5), A: (10, 5)}),
        (LAUNCHED_BEFORE, [], {FIRST: (400, 60), DELAY: (10, 5), A: (10, 5)}),
    ],
    ids=["host", "device", "exposed communication", "hidden communication", "synchronised", "no synchronisation",
         "slow rank", "late data", "launched before", "launched before, nothing waits"],
)  # fmt: skip
def test_parts_and_what_half_of_them_brings(
    events: Sequence[Event], waits_us: list[float], expected: dict[tuple[str, str], tuple[float, float]]
) -> None:
    begin_ns = {0: 100 * US} if events in (LATE_DATA, LAUNCHED_BEFORE) else {}
    found = path_of(events, {0: [one * US for one in waits_us]}, begin_ns)
    assert {one.part: (one.path_ns / US, one.saved_ns / US) for one in found} == expected


@st.composite
def steps(draw: st.DrawFn) -> list[Event]:
    """Two ranks with two streams each: launches in order, kernels in order of launch, collectives that meet."""
    found = []
    for rank in range(draw(st.integers(1, 2))):
        launch, free = 0, {7: 0, 20: 0}
        for place in range(draw(st.integers(1, 12))):
            launch += draw(st.integers(0, 60))
            stream = draw(st.sampled_from([7, 20]))
            start = max(launch + draw(st.integers(1, 30)), free[stream])
            free[stream] = start + draw(st.integers(0, 90))
            part = draw(st.sampled_from([A, B, C]))
            found.append(event(part, start, free[stream], launch if draw(st.booleans()) else None, stream, rank,
                               place if part is C else None, draw(st.integers(0, 9)) > 0))  # fmt: skip
    return found


@given(steps(), st.lists(st.integers(0, 90), max_size=3))
def test_a_half_saves_at_most_half_of_its_time_on_the_path(events: list[Event], waits: list[int]) -> None:
    own = [event for event in events if event.is_own]
    calls_ns = {rank: [one * US for one in waits] for rank in (0, 1)}
    found = path_of(events, calls_ns, {0: 0, 1: 0})
    for one in found:
        assert -1e-6 <= one.saved_ns <= one.path_ns / 2 + 1e-6
    # It is one chain that ends with the step.
    assert sum(one.path_ns for one in found) <= max((event.end_ns for event in own), default=0)


def test_a_step_of_many_events() -> None:
    pairs = 20_000
    events = [
        one
        for place in range(0, 30 * pairs, 30)
        for one in (
            event(A, place + 1, place + 11, place // 30),
            event(B, place + 11, place + 31, place // 30),
        )
    ]
    found = {
        one.part: (one.path_ns / US / pairs, one.saved_ns / US / pairs) for one in path_of(events, {}, {})
    }
    assert found[B] == pytest.approx((20, 10), rel=1e-3)
    assert found[A] == pytest.approx((10, 5), rel=1e-3)


def random_path(seed: int) -> list[PathPart]:
    """Of a step and the end of the one before: up to three ranks of three streams, calls that wait, awaited events."""
    random = Random(seed)
    ranks, is_recorded = random.randint(1, 3), random.random() < 0.5
    rows: list[list[float]] = []
    for rank in range(ranks):
        launch, free = 0, [0, 0, 0]
        for place in range(random.randint(2, 25)):
            stream = random.randrange(3)
            if random.random() < 0.2:  # the host waits for something
                launch = max(launch, *free) + random.randint(0, 9) * 1000
            launch += random.choice([0, 1, 10, 50]) * 1000
            start = max(
                launch + random.randint(1, 30) * 500, free[stream] + random.choice([-2, 0, 1, 7]) * 1000
            )
            free[stream] = start + random.randint(0, 90) * 500
            is_unknown, collective = random.random() < 0.15, place if random.random() < 0.2 else -1
            rows.append([rank, 3 * rank + stream, start, free[stream], nan if is_unknown else launch,
                         random.choice([4, 6]) if collective < 0 else 5, collective, place > 3,
                         random.random() < 0.2, random.choice([2, 3]), NOT_RECORDED])  # fmt: skip
    rows.sort(key=lambda row: (row[2], row[3]))
    for row in rows if is_recorded else ():
        others = [
            place
            for place, one in enumerate(rows)
            if (one[0], one[3]) <= (row[0], row[2]) and one[1] != row[1]
        ]
        row[-1] = random.choice([NOTHING, *others[-3:]])
    kinds = (np.intp, np.intp, float, float, float, np.intp, np.intp, bool, bool, np.intp, np.intp)
    columns = (np.array([row[place] for row in rows], dtype=kind) for place, kind in enumerate(kinds))
    calls_ns = {rank: [random.randint(1, 90) * 1000 for _ in range(6)] for rank in range(ranks)}
    begin_ns = {rank: random.randint(0, 40) * 1000 for rank in range(random.randint(0, ranks))}
    return critical_path(
        PathEvents(*columns), [DELAY, FIRST, HOST, ("host", "other"), B, C, A], calls_ns, begin_ns, top=6
    )


def test_paths_of_random_steps_are_as_they_were() -> None:
    found = ""
    for seed in range(120):
        path = random_path(seed)
        assert all(-1e-3 <= one.saved_ns <= one.path_ns / 2 + 1e-3 for one in path), seed
        parts = (f"{one.part[1]} {one.path_ns:.0f} {one.saved_ns:.0f} {one.share:.3f}" for one in path)
        found += f"{seed}: {', '.join(parts)}\n"
    file = Path(__file__).with_name("critical_paths.txt")
    if "WRITE_WHOLE_TEXTS" in os.environ:
        file.write_text(found)
    assert found == file.read_text()
