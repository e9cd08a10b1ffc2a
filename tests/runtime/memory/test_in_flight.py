"""What is in flight, against the passes of the schedules themselves."""

from itertools import accumulate
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.runtime.memory.in_flight import Load, loads
from kernelcast.runtime.pipeline.schedules import Kind, stage_orders
from kernelcast.runtime.request.fields import Schedule
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS, chunks_on
from tests.runtime.pipelines import SCHEDULES, pipelines

Counts = tuple[tuple[int, ...], ...]


def walked(shape: dict[str, Any], counts: Counts, stage: int) -> tuple[tuple[int, ...], int, int]:
    """Layers of each kind, passes of the first and of the last chunk that wait for their backward pass: the most."""
    order = stage_orders(**shape)[stage]
    chunks = sorted({one.chunk for one in order})
    alive, most = ([0] * len(counts[0]) for _ in range(2))
    first, last = 0, 0
    ends = [0, 0]
    copies = SCHEDULE_KINDS[shape["schedule"]].copies
    of_model = len(counts) // copies
    # Without an end of the model the first and the last of its chunks are counted, whose number then plays no part.
    firsts = {chunk for chunk in chunks if chunk % of_model == 0} or {chunks[0]}
    lasts = {chunk for chunk in chunks if (chunk + 1) % of_model == 0} or {chunks[-1]}
    for one in order:
        if one.kind is Kind.WEIGHT:
            continue
        step = 1 if one.kind is Kind.FORWARD else -1
        alive = [own + step * count for own, count in zip(alive, counts[one.chunk], strict=True)]
        ends[0] += step * (one.chunk in firsts)
        ends[1] += step * (one.chunk in lasts)
        most = [max(pair) for pair in zip(most, alive, strict=True)]
        first, last = max(first, ends[0]), max(last, ends[1])
    return tuple(most), first, last


@st.composite
def with_counts(
    draw: st.DrawFn, schedules: tuple[Schedule, ...] = SCHEDULES
) -> tuple[dict[str, Any], Counts]:
    shape = draw(pipelines(schedules=schedules))
    chunks = shape["pp"] * shape["virtual_stages"]
    of_kinds = st.tuples(*[st.integers(0, 5)] * draw(st.integers(1, 3)))
    counts = tuple(draw(st.lists(of_kinds, min_size=chunks, max_size=chunks)))
    return shape, counts * SCHEDULE_KINDS[shape["schedule"]].copies


@given(with_counts())
@settings(max_examples=150)
def test_it_is_the_most_that_any_moment_of_the_schedule_has(asked: tuple[dict[str, Any], Counts]) -> None:
    shape, counts = asked
    schedule, pp, virtual_stages = shape["schedule"], shape["pp"], shape["virtual_stages"]
    copies = SCHEDULE_KINDS[schedule].copies
    on_stages = chunks_on(schedule, pp, virtual_stages)
    found = loads(schedule, pp, virtual_stages, shape["micro_batches"], counts)
    for stage, (load, chunks) in enumerate(zip(found, on_stages, strict=True)):
        own = [counts[chunk] for chunk in chunks]
        assert load.layers == tuple(map(sum, zip(*own, strict=True)))
        assert load.chunk_layers == sum(own[0])
        assert load.copies == copies
        ends = (
            int(0 in chunks or pp in chunks[1:] * (copies - 1)),
            int(len(counts) - 1 in chunks or pp - 1 in chunks * (copies - 1)),
        )
        assert (load.first, load.last) == ends
        live, live_first, live_last = walked(shape, counts, stage)
        assert load.live_layers == live
        if load.first or not SCHEDULE_KINDS[schedule].is_v:
            assert load.live_first == live_first
        if load.last or not SCHEDULE_KINDS[schedule].is_v:
            assert load.live_last == live_last


@given(with_counts(schedules=("gpipe", "1f1b", "interleaved", "zero_bubble")))
def test_late_weight_gradients_are_as_many_as_the_schedule_has(asked: tuple[dict[str, Any], Counts]) -> None:
    shape, counts = asked
    schedule, pp = shape["schedule"], shape["pp"]
    for stage, load in enumerate(
        loads(schedule, pp, shape["virtual_stages"], shape["micro_batches"], counts)
    ):
        # A backward pass's own weight gradients are not late: they follow at once where s is 0.
        waiting, most = 0, 0
        for one in stage_orders(**shape)[stage]:
            if one.kind is Kind.BACKWARD:
                most = max(most, waiting)
                waiting += schedule == "zero_bubble"
            elif one.kind is Kind.WEIGHT:
                waiting -= 1
        assert load.late == most


@given(with_counts(schedules=("zb_v", "dualpipe", "dualpipe_v")))
def test_what_is_late_in_v_shapes_never_exceeds_what_was_in_flight_by_more(
    asked: tuple[dict[str, Any], Counts],
) -> None:
    shape, counts = asked
    found = loads(shape["schedule"], shape["pp"], shape["virtual_stages"], shape["micro_batches"], counts)
    for order, load in zip(stage_orders(**shape), found, strict=True):
        step = {Kind.FORWARD: 1, Kind.BACKWARD: 0, Kind.WEIGHT: -1}
        together = max(accumulate(step[one.kind] for one in order))
        alive = max(
            accumulate(
                step[one.kind] - (one.kind is Kind.BACKWARD) + (one.kind is Kind.WEIGHT) for one in order
            )
        )
        assert 2 * load.late >= together - alive > 2 * load.late - 2


def test_by_hand() -> None:
    counts = ((3,), (4,), (4,), (2,))
    assert [load.live_layers[0] for load in loads("1f1b", 4, 1, 16, counts)] == [12, 12, 8, 2]
    assert [load.live_layers[0] for load in loads("1f1b", 4, 1, 2, counts)] == [6, 8, 8, 2]
    assert [load.live_layers[0] for load in loads("gpipe", 4, 1, 16, counts)] == [48, 64, 64, 32]
    # 2·3 + 4 ahead, and one: 11 chunk passes of one layer on the first stage of four with two chunks.
    assert [load.live_layers[0] for load in loads("interleaved", 4, 2, 16, ((1,),) * 8)] == [11, 9, 7, 5]
    # Two chunks of one layer: ZB-V has 1F1B's memory, DualPipe and its half a chunk more (arXiv 2412.19437, table 2).
    assert [load.live_layers[0] for load in loads("zb_v", 4, 2, 16, ((1,),) * 8)] == [8, 8, 8, 8]
    assert [load.live_layers[0] for load in loads("dualpipe", 8, 1, 32, ((1,),) * 16)] == [9] * 8
    assert [load.live_layers[0] for load in loads("dualpipe_v", 4, 2, 16, ((1,),) * 8)] == [9] * 4
    assert loads("1f1b", 1, 1, 8, ((5,),)) == (
        Load(
            first=1,
            last=1,
            layers=(5,),
            chunk_layers=5,
            live_layers=(5,),
            live_first=1,
            live_last=1,
            late=0,
        ),
    )
