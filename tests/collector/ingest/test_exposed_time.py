"""Every instant of a device belongs to one event, or is idle before one."""

from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.collector.ingest.exposed_time import expose
from kernelcast.collector.traces.events import NO_ID

COMPUTE, COMMUNICATION, MEMORY = 0, 1, 2


class Span(NamedTuple):
    start_ns: int
    end_ns: int
    rank: int
    launch_ns: int | None = None


def figures(*spans: Span) -> list[tuple[int, int, int | None]]:
    """Exposed, idle and late time of each."""
    start, end, rank, launch = zip(*spans, strict=True)
    known = [NO_ID if one is None else one for one in launch]
    exposed, idle, late = (one.tolist() for one in expose(*map(np.array, (start, end, rank, known))))
    return [(*one, None if ns == NO_ID else ns) for *one, ns in zip(exposed, idle, late, strict=True)]


def test_compute_hides_communication_which_hides_copies() -> None:
    assert figures(
        Span(100, 200, COMPUTE, 50),
        Span(150, 300, COMMUNICATION, 60),
        Span(180, 400, MEMORY, 70),
    ) == [(100, 0, 0), (100, 0, 0), (100, 0, 0)]


def test_compute_inside_of_communication() -> None:
    assert figures(Span(0, 100, COMMUNICATION), Span(20, 50, COMPUTE)) == [(70, 0, None), (30, 0, None)]


def test_the_host_is_late_until_it_launches() -> None:
    # 40 of the 60 before the launch; launched before the gap; its launch unknown.
    assert figures(
        Span(0, 100, COMPUTE, -10), Span(160, 170, COMPUTE, 140), Span(200, 210, COMPUTE, 5), Span(250, 260, COMPUTE)
    ) == [(100, 0, 0), (10, 60, 40), (10, 30, 0), (10, 40, None)]  # fmt: skip


def test_calls_of_a_cpu_nest() -> None:
    assert figures(Span(0, 100, COMPUTE), Span(10, 40, COMPUTE), Span(20, 30, COMPUTE)) == [
        (70, 0, None), (20, 0, None), (10, 0, None),
    ]  # fmt: skip


SPANS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 15), st.integers(0, 2), st.none() | st.integers(0, 40)),
    min_size=1,
    max_size=12,
)


@given(SPANS)
def test_instant_by_instant(drawn: list[tuple[int, int, int, int | None]]) -> None:
    spans = [Span(start, start + time, rank, launch) for start, time, rank, launch in sorted(drawn, key=str)]
    spans.sort(key=lambda span: span.start_ns)
    done = figures(*spans)
    exposed = [0] * len(spans)
    idle = 0
    for instant in range(spans[0].start_ns, max(span.end_ns for span in spans)):
        running = [
            (span.rank, -span.start_ns, -number)
            for number, span in enumerate(spans)
            if span.start_ns <= instant < span.end_ns
        ]
        if running:
            exposed[-min(running)[2]] += 1
        else:
            idle += 1
    assert [exposed_ns for exposed_ns, _, _ in done] == exposed
    assert sum(idle_ns for _, idle_ns, _ in done) == idle
    assert all(late_ns is None or 0 <= late_ns <= idle_ns for _, idle_ns, late_ns in done)
