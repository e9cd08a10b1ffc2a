"""What is in flight, against the passes of the schedules themselves."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.runtime.memory.in_flight import Load, loads
from kernelcast.runtime.pipeline.schedules import Kind, stage_orders
from kernelcast.runtime.request.fields import Schedule


def walked(
    schedule: Schedule,
    pp: int,
    virtual_stages: int,
    micro_batches: int,
    counts: tuple[tuple[int, ...], ...],
    stage: int,
) -> tuple[tuple[int, ...], int, int]:
    """Layers of each kind, passes of the first and of the last chunk that wait for their backward pass: the most."""
    alive, most = ([0] * len(counts[0]) for _ in range(2))
    first, last = 0, 0
    ends = [0, 0]
    for one in stage_orders(schedule, pp, micro_batches, virtual_stages)[stage]:
        if one.kind is Kind.WEIGHT:
            continue
        step = 1 if one.kind is Kind.FORWARD else -1
        alive = [own + step * count for own, count in zip(alive, counts[one.chunk], strict=True)]
        ends[0] += step * (one.chunk == stage)
        ends[1] += step * (one.chunk == len(counts) - pp + stage)
        most = [max(pair) for pair in zip(most, alive, strict=True)]
        first, last = max(first, ends[0]), max(last, ends[1])
    return tuple(most), first, last


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Schedule, int, int, int, tuple[tuple[int, ...], ...]]:
    schedule: Schedule = draw(st.sampled_from(("gpipe", "1f1b", "interleaved", "zero_bubble")))
    interleaved = schedule == "interleaved"
    pp = draw(st.integers(2 if interleaved else 1, 6))
    virtual_stages = draw(st.integers(1, 4)) if interleaved else 1
    micro_batches = draw(st.integers(1, 5)) * pp if interleaved else draw(st.integers(1, 12))
    chunks = pp * virtual_stages
    of_kinds = st.tuples(*[st.integers(0, 5)] * draw(st.integers(1, 3)))
    counts = draw(st.lists(of_kinds, min_size=chunks, max_size=chunks))
    return schedule, pp, virtual_stages, micro_batches, tuple(counts)


@given(pipelines())
@settings(max_examples=150)
def test_it_is_the_most_that_any_moment_of_the_schedule_has(
    pipeline: tuple[Schedule, int, int, int, tuple[tuple[int, ...], ...]],
) -> None:
    schedule, pp, virtual_stages, micro_batches, counts = pipeline
    for stage, load in enumerate(loads(schedule, pp, virtual_stages, micro_batches, counts)):
        own = counts[stage::pp]
        assert load.layers == tuple(map(sum, zip(*own, strict=True)))
        assert load.chunk_layers == sum(own[0])
        assert (load.live_layers, load.live_first, load.live_last) == walked(*pipeline, stage)
        assert (load.first, load.last) == (int(stage == 0), int(stage == pp - 1))


@given(pipelines())
def test_late_weight_gradients_are_as_many_as_the_schedule_has(
    pipeline: tuple[Schedule, int, int, int, tuple[tuple[int, ...], ...]],
) -> None:
    schedule, pp, virtual_stages, micro_batches, counts = pipeline
    for stage, load in enumerate(loads(schedule, pp, virtual_stages, micro_batches, counts)):
        # A backward pass's own weight gradients are not late: they follow at once where s is 0.
        waiting, most = 0, 0
        for one in stage_orders(schedule, pp, micro_batches, virtual_stages)[stage]:
            if one.kind is Kind.BACKWARD:
                most = max(most, waiting)
                waiting += schedule == "zero_bubble"
            elif one.kind is Kind.WEIGHT:
                waiting -= 1
        assert load.late == most


def test_by_hand() -> None:
    counts = ((3,), (4,), (4,), (2,))
    assert [load.live_layers[0] for load in loads("1f1b", 4, 1, 16, counts)] == [12, 12, 8, 2]
    assert [load.live_layers[0] for load in loads("1f1b", 4, 1, 2, counts)] == [6, 8, 8, 2]
    assert [load.live_layers[0] for load in loads("gpipe", 4, 1, 16, counts)] == [48, 64, 64, 32]
    # 2·3 + 4 ahead, and one: 11 chunk passes of one layer on the first stage of four with two chunks.
    assert [load.live_layers[0] for load in loads("interleaved", 4, 2, 16, ((1,),) * 8)] == [11, 9, 7, 5]
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
