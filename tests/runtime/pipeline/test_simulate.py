"""Simulated steps against a reference that plays the schedule event by event."""

import heapq
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime.pipeline.pass_times import step_timeline
from kernelcast.runtime.pipeline.simulate import Simulated, simulate
from tests.runtime.pipeline.questions import Question, few, questions, random_durations, relaxed, uniform

Times = dict[tuple[str, int, int], tuple[float, float]]


def play(question: Question) -> Times:
    """Start and end of every pass (kind, chunk, micro-batch) of the first configuration.

    Plays the pipeline in the order of time. No list of passes: a stage decides what comes next from how many
    passes of each kind it has run, as the schedules' papers describe it in words: how many micro-batches may
    be under way before a stage must turn to backward passes.
    """
    pp, v, chunks = question.pp, question.virtual_stages, question.pp * question.virtual_stages
    total = question.micro_batches * v
    d = question.durations
    run = [dict.fromkeys(("forward", "backward", "weight"), 0) for _ in range(pp)]
    busy = [False] * pp
    arrived: set[tuple[str, int, int]] = {("forward", 0, index) for index in range(question.micro_batches)}
    times: Times = {}
    events: list[tuple[float, int, str, Any]] = []
    now, count = 0.0, 0

    def limit(stage: int) -> int:
        return {
            "gpipe": total,
            "1f1b": pp - stage,
            "zero_bubble": pp - stage,
            "interleaved": 2 * (pp - 1 - stage) + (v - 1) * pp + 1,
        }[question.schedule]

    def wanted(stage: int) -> str | None:
        forward, backward, weight = run[stage].values()
        late = backward - weight
        if question.schedule == "zero_bubble" and late and (late > stage or backward == total):
            return "weight"
        if forward < total and forward - backward < limit(stage):
            return "forward"
        return "backward" if backward < total else None

    def which(kind: str, index: int, stage: int) -> tuple[str, int, int]:
        rounds, rest = divmod(index, pp * v)
        turn = rest // pp
        if question.schedule != "interleaved":
            return kind, stage, index
        local = turn if kind == "forward" else v - 1 - turn
        return kind, local * pp + stage, rounds * pp + rest % pp

    def push(delay: float, what: str, payload: Any) -> None:
        nonlocal count
        count += 1
        heapq.heappush(events, (now + delay, count, what, payload))

    def try_to_start(stage: int) -> None:
        kind = None if busy[stage] else wanted(stage)
        if kind is None:
            return
        one = which(kind, run[stage][kind], stage)
        if kind != "weight" and one not in arrived:
            return
        run[stage][kind] += 1
        busy[stage] = True
        length = {"forward": d.forward_us, "backward": d.backward_us, "weight": d.weight_us}[kind][0, one[1]]
        completing = "weight" if question.schedule == "zero_bubble" else "backward"
        if d.overlap is not None and kind == "forward" and one[2] == 0:
            length += d.overlap.first_us[0, one[1]]
        if d.overlap is not None and kind == completing and one[2] == question.micro_batches - 1:
            length += d.overlap.last_us[0, one[1]]
        times[one] = (now, now + length)
        push(length, "finished", one)

    for stage in range(pp):
        try_to_start(stage)
    while events:
        now, _, what, one = heapq.heappop(events)
        kind, chunk, index = one
        if what == "arrived":
            arrived.add(one)
        else:
            busy[chunk % pp] = False
            if kind == "forward" and chunk + 1 < chunks:
                push(d.send_forward_us[0, chunk], "arrived", ("forward", chunk + 1, index))
            elif kind == "forward":
                arrived.add(("backward", chunk, index))
            elif kind == "backward" and chunk:
                push(d.send_backward_us[0, chunk], "arrived", ("backward", chunk - 1, index))
        try_to_start(chunk % pp)
    return times


@relaxed
@given(questions())
def test_every_pass_is_when_a_pipeline_played_in_time_runs_it(question: Question) -> None:
    expected = play(question)
    timeline = step_timeline(**question.arguments)
    found = {
        (one.kind.value, one.chunk, one.micro_batch): (start_us, end_us)
        for stage in timeline.stages
        for one, start_us, end_us in zip(stage.passes, stage.starts_us, stage.ends_us, strict=True)
    }
    assert found.keys() == expected.keys()
    for one, times in expected.items():
        assert found[one] == pytest.approx(times, rel=1e-11, abs=1e-6)


@relaxed
@given(questions(most_stages=5, most_micro_batches=150), st.integers(1, 9))
def test_the_simulation_is_the_sum_of_its_passes_to_the_bit(question: Question, buckets: int) -> None:
    # Long enough for the middle to repeat, so that it is multiplied rather than run.
    simulated = simulate(**question.arguments, buckets=buckets)
    timeline = step_timeline(**question.arguments, buckets=buckets)
    assert simulated.compute_end_us[0].tolist() == [stage.ends_us[-1] for stage in timeline.stages]
    assert simulated.end_us[0].tolist() == [stage.update.end_us for stage in timeline.stages]
    assert simulated.step_us[0] == timeline.step_us
    assert simulated.pipeline_us[0] == max(stage.ends_us[-1] for stage in timeline.stages)
    for stage, reduced_us in zip(timeline.stages, simulated.all_reduce_end_us[0], strict=True):
        assert reduced_us == (stage.all_reduces[-1].end_us if stage.all_reduces else stage.ends_us[-1])


@relaxed
@given(questions(configs=3, most_micro_batches=60))
def test_configurations_do_not_meet(question: Question) -> None:
    together = simulate(**question.arguments)
    for row in range(3):
        alone = simulate(**question.arguments | {"durations": question.durations.take(slice(row, row + 1))})
        for name in Simulated.__slots__:
            assert (getattr(alone, name)[0] == getattr(together, name)[row]).all()


def test_many_configurations_are_answered_in_parts_that_fit_together() -> None:
    durations = random_durations(7, schedule="1f1b", pp=8, virtual_stages=1, configs=5000, style="alike")
    together = simulate(schedule="1f1b", pp=8, micro_batches=40, durations=durations)
    assert together.end_us.shape == (5000, 8)
    for row in (0, 2047, 2048, 4999):
        alone = simulate(
            schedule="1f1b", pp=8, micro_batches=40, durations=durations.take(slice(row, row + 1))
        )
        assert (alone.end_us[0] == together.end_us[row]).all()


@few
@given(questions(schedules=("1f1b", "zero_bubble", "interleaved")))
def test_memory_does_not_grow_with_micro_batches(question: Question) -> None:
    def peak_bytes(micro_batches: int) -> int:
        tracemalloc.start()
        simulate(**question.arguments | {"micro_batches": micro_batches})
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_bytes(question.pp * 20)
    assert peak_bytes(question.pp * 400) <= 1.5 * peak_bytes(question.pp * 100) + 4096


def test_a_million_micro_batches_follow_from_the_few_that_repeat() -> None:
    durations = uniform(8, 3, 5)
    found = simulate(schedule="1f1b", pp=8, micro_batches=1_000_000, durations=durations)
    assert found.step_us[0] == pytest.approx(1_000_007 * 8, rel=1e-12)
