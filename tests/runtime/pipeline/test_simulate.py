"""Simulated steps: against a reference that plays the schedule event by event, and the laws of pipelines."""

import heapq
import tracemalloc
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernelcast.runtime.pipeline import Durations, Simulated, closed_forms, simulate, step_timeline
from kernelcast.runtime.pipeline.durations import PER_CHUNK, PER_STAGE
from kernelcast.runtime.pipeline.overlap import Overlap, gathered_together_us, gathered_us, slowed_us

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")
Times = dict[tuple[str, int, int], tuple[float, float]]


@dataclass(frozen=True)
class Question:
    """A schedule's shape and durations; `arguments` are those of `simulate` and `step_timeline`."""

    schedule: str
    pp: int
    micro_batches: int
    virtual_stages: int
    durations: Durations

    @property
    def arguments(self) -> dict[str, Any]:
        return {
            "schedule": self.schedule,
            "pp": self.pp,
            "micro_batches": self.micro_batches,
            "virtual_stages": self.virtual_stages,
            "durations": self.durations,
        }


def random_durations(
    seed: int,
    *,
    schedule: str,
    pp: int,
    virtual_stages: int,
    configs: int,
    style: str,
    overlaps: bool = False,
) -> Durations:
    """Random times; `whole` has many ties and zeros, `alike` nearly equal stages, `wild` six orders of magnitude."""
    rng = np.random.default_rng(seed)

    def draw(columns: int) -> np.ndarray[Any, Any]:
        if style == "whole":
            return rng.integers(0, 4, (configs, columns)).astype(np.float64)
        if style == "alike":
            return 100 + rng.random((configs, 1)) * 10 + rng.choice((0.0, 0.0, 0.37), (configs, columns))
        return np.asarray(np.exp(rng.uniform(-2, 12, (configs, columns))))

    chunks = pp * virtual_stages
    split = schedule == "zero_bubble"
    scale = 0.1 if style == "alike" else 1.0
    overlap = Overlap(
        first_us=draw(chunks) * scale,
        last_us=draw(chunks) * scale,
        buckets=rng.integers(1, 9, (configs, pp)).astype(np.float64),
    )
    return Durations(
        forward_us=draw(chunks),
        backward_us=draw(chunks),
        weight_us=draw(chunks) if split else np.zeros((configs, chunks)),
        send_forward_us=draw(chunks) * scale,
        send_backward_us=draw(chunks) * scale,
        all_reduce_us=draw(pp),
        update_us=draw(pp),
        overlap=overlap if overlaps else None,
    )


@st.composite
def questions(
    draw: st.DrawFn,
    *,
    schedules: tuple[str, ...] = SCHEDULES,
    most_stages: int = 7,
    most_micro_batches: int = 24,
    configs: int = 1,
    overlaps: bool = True,
) -> Question:
    schedule = draw(st.sampled_from(schedules))
    interleaved = schedule == "interleaved"
    pp = draw(st.integers(2 if schedule in ("interleaved", "zero_bubble") else 1, most_stages))
    micro_batches = draw(st.integers(1, most_micro_batches))
    virtual_stages = 1
    if interleaved:
        virtual_stages = draw(st.integers(1, 3))
        micro_batches = pp * -(-micro_batches // pp)
    durations = random_durations(
        draw(st.integers(0, 2**32)),
        schedule=schedule,
        pp=pp,
        virtual_stages=virtual_stages,
        configs=configs,
        style=draw(st.sampled_from(("whole", "alike", "wild"))),
        overlaps=overlaps and draw(st.booleans()),
    )
    return Question(schedule, pp, micro_batches, virtual_stages, durations)


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


def uniform(
    pp: int, forward: float, backward: float, weight: float = 0.0, *, virtual_stages: int = 1
) -> Durations:
    """Stages that all take the same, without communication; the times are a device's, of all its chunks."""
    chunks = pp * virtual_stages
    none = np.zeros((1, chunks))
    return Durations(
        forward_us=none + forward / virtual_stages,
        backward_us=none + backward / virtual_stages,
        weight_us=none + weight / virtual_stages,
        send_forward_us=none,
        send_backward_us=none,
        all_reduce_us=np.zeros((1, pp)),
        update_us=np.zeros((1, pp)),
    )


relaxed = settings(deadline=None, max_examples=150)
few = settings(deadline=None, max_examples=40)


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


@pytest.mark.parametrize("virtual_stages", [1, 2, 3, 4])
@given(st.integers(1, 9), st.integers(1, 300), st.integers(1, 50), st.integers(1, 50))
@few
def test_uniform_stages_without_communication(
    virtual_stages: int, pp: int, micro_batches: int, forward: int, backward: int
) -> None:
    # (m + pp − 1)(f + b) is eq. 7's first term; the bubble of (pp − 1)(f + b)/v is arXiv 2104.04473, 2.2.
    durations = uniform(pp, forward, backward)
    expected = (micro_batches + pp - 1) * (forward + backward)
    for schedule in ("gpipe", "1f1b", *(["zero_bubble"] if pp > 1 else [])):
        found = simulate(schedule=schedule, pp=pp, micro_batches=micro_batches, durations=durations)
        assert found.step_us == found.pipeline_us == pytest.approx(expected, rel=1e-12)
    if pp > 1:
        rounds = pp * micro_batches
        found = simulate(
            schedule="interleaved",
            pp=pp,
            micro_batches=rounds,
            virtual_stages=virtual_stages,
            durations=uniform(pp, forward, backward, virtual_stages=virtual_stages),
        )
        expected = (rounds + (pp - 1) / virtual_stages) * (forward + backward)
        assert found.step_us == pytest.approx(expected, rel=1e-11)


@given(st.integers(2, 9), st.integers(0, 60), *3 * [st.integers(1, 20)])
@relaxed
def test_uniform_zero_bubble(pp: int, more: int, forward: int, backward: int, weight: int) -> None:
    # A bubble of (pp − 1)(f + b − w) is arXiv 2401.10241, table 2; docs/timeline.md says when it is reached.
    micro_batches = pp + more
    durations = uniform(pp, forward, backward, weight)
    found = simulate(schedule="zero_bubble", pp=pp, micro_batches=micro_batches, durations=durations).step_us[
        0
    ]
    known = micro_batches * (forward + backward + weight) + (pp - 1) * (forward + backward - weight)
    if weight <= min(forward, backward):
        assert found == pytest.approx(known, rel=1e-12)
    else:
        assert found >= known * (1 - 1e-12)
    joined = uniform(pp, forward, backward + weight)
    assert found <= simulate(schedule="1f1b", pp=pp, micro_batches=micro_batches, durations=joined).step_us[0]


@relaxed
@given(questions(most_micro_batches=60))
def test_no_step_is_shorter_than_the_work_of_a_stage(question: Question) -> None:
    d, pp = question.durations, question.pp
    passes = (d.forward_us + d.backward_us + d.weight_us)[0].reshape(question.virtual_stages, pp).sum(axis=0)
    busiest = (question.micro_batches * passes + d.update_us[0]).max()
    simulated = simulate(**question.arguments)
    assert simulated.step_us[0] >= busiest * (1 - 1e-11)
    assert (simulated.end_us[0] >= (d.all_reduce_us + d.update_us)[0] * (1 - 1e-11)).all()
    # Nor longer than everything one after the other.
    sends = (d.send_forward_us + d.send_backward_us)[0].sum()
    everything = question.micro_batches * (passes.sum() + sends) + (d.all_reduce_us + d.update_us)[0].sum()
    if d.overlap is not None:
        everything += (d.overlap.first_us + d.overlap.last_us).sum()
    assert simulated.step_us[0] <= everything * (1 + 1e-11)


@relaxed
@given(questions(), st.sampled_from((*PER_CHUNK, *PER_STAGE)), st.data())
def test_a_longer_piece_never_shortens_a_step(question: Question, name: str, data: st.DataObject) -> None:
    assume(name != "weight_us" or question.schedule == "zero_bubble")
    times = getattr(question.durations, name).copy()
    index = data.draw(st.integers(0, times.shape[1] - 1))
    times[0, index] += data.draw(st.floats(0.001, 1e6))
    slower = simulate(**question.arguments | {"durations": replace(question.durations, **{name: times})})
    assert slower.step_us[0] >= simulate(**question.arguments).step_us[0] * (1 - 1e-10)


@relaxed
@given(questions(most_micro_batches=60), st.integers(1, 3))
def test_more_micro_batches_never_shorten_a_step(question: Question, more: int) -> None:
    step = question.pp if question.schedule == "interleaved" else 1
    longer = simulate(**question.arguments | {"micro_batches": question.micro_batches + more * step})
    assert longer.step_us[0] >= simulate(**question.arguments).step_us[0] * (1 - 1e-11)


@relaxed
@given(questions(schedules=("gpipe", "1f1b"), most_micro_batches=60, overlaps=False), st.integers(1, 4))
def test_the_papers_closed_form_is_an_upper_envelope(question: Question, buckets: int) -> None:
    d = question.durations
    forward, backward = d.forward_us + d.send_forward_us, d.backward_us + d.send_backward_us
    # What docs/timeline.md asks of all-reduces: a later stage has more time for its own.
    slack = np.arange(question.pp) * backward.max()
    reduces = np.minimum(d.all_reduce_us, d.all_reduce_us[:, :1] + slack)
    envelope = closed_forms(
        forward_us=forward,
        backward_us=backward,
        all_reduce_us=reduces,
        update_us=d.update_us,
        micro_batches=question.micro_batches,
    )
    exact = simulate(**question.arguments | {"durations": replace(d, all_reduce_us=reduces)}, buckets=buckets)
    assert exact.step_us[0] <= envelope.step_us[0] * (1 + 1e-11)


def test_all_reduces_hide_behind_the_last_backward_pass_piece_by_piece() -> None:
    # One stage, 3 micro-batches of 1 + 4 µs: the last backward pass runs from 11 to 15.
    durations = replace(uniform(1, 1, 4), all_reduce_us=np.full((1, 1), 8.0), update_us=np.full((1, 1), 2.0))

    def step_us(buckets: int) -> float:
        found = simulate(schedule="1f1b", pp=1, micro_batches=3, durations=durations, buckets=buckets)
        return float(found.step_us[0])

    assert step_us(1) == 15 + 8 + 2
    assert step_us(4) == 11 + 1 + 8 + 2  # the network is the slower one, and starts after a quarter
    short = replace(durations, all_reduce_us=np.full((1, 1), 2.0))
    found = simulate(schedule="1f1b", pp=1, micro_batches=3, durations=short, buckets=4)
    assert found.step_us[0] == 15 + 2 / 4 + 2  # the pass is the slower one: only the last piece is left


def test_all_reduces_of_later_stages_hide_behind_earlier_stages() -> None:
    durations = replace(uniform(3, 1, 2), all_reduce_us=np.array([[1.0, 3.0, 5.0]]))
    found = simulate(schedule="1f1b", pp=3, micro_batches=4, durations=durations)
    assert found.compute_end_us[0].tolist() == [18, 16, 14]
    assert found.all_reduce_end_us[0].tolist() == [19, 19, 19]


@relaxed
@given(questions(), st.sampled_from(("first_us", "last_us")), st.data())
def test_longer_first_and_last_passes_never_shorten_a_step(
    question: Question, name: str, data: st.DataObject
) -> None:
    assume(question.durations.overlap is not None)
    times = getattr(question.durations.overlap, name).copy()
    times[0, data.draw(st.integers(0, times.shape[1] - 1))] += data.draw(st.floats(0.001, 1e6))
    overlap = replace(question.durations.overlap, **{name: times})
    slower = simulate(**question.arguments | {"durations": replace(question.durations, overlap=overlap)})
    assert slower.step_us[0] >= simulate(**question.arguments).step_us[0] * (1 - 1e-10)


def test_buckets_beside_a_pass_by_hand() -> None:
    # 4 buckets of 8 µs in all beside a pass of 20: three of them run beside it, and it loses half of their 6 µs.
    def slowed(pass_us: float, network_us: float, buckets: float, share: float) -> float:
        return float(slowed_us(np.array(pass_us), np.array(network_us), np.array(buckets), share))

    assert slowed(20, 8, 4, 0.5) == 3
    assert slowed(20, 8, 4, 0) == slowed(20, 8, 1, 1) == slowed(20, 0, 4, 1) == 0
    # Beside a long collective a pass of 20 takes 32: it loses half of the three quarters that are beside the network.
    assert slowed(20, 800, 4, 0.5) == pytest.approx(12)
    assert pytest.approx(32) == 20 + 0.5 * 0.75 * 32
    # With ever more buckets the law of blocks: max(c + e · n, n) of computing c beside n.
    for network in (8.0, 30.0, 60.0):
        ends = 20 + slowed(20, network, 1e9, 0.25)
        assert max(ends, network) == pytest.approx(max(20 + 0.25 * network, network))


def test_parameters_that_arrive_in_buckets_by_hand() -> None:
    def gathered(pass_us: float, network_us: float, buckets: float, share: float = 0.0) -> float:
        return float(gathered_us(np.array(pass_us), np.array(network_us), np.array(buckets), share))

    assert gathered(20, 8, 1) == 8  # all of it before the pass
    assert gathered(20, 8, 4) == 2  # the first bucket
    assert (
        gathered(20, 80, 4) == 80 + 5 - 20
    )  # the network is the slower one: the last quarter of the pass is left
    assert gathered(20, 8, 4, 0.5) == 2 + 3
    assert gathered(20, 0, 4, 0.5) == 0


def test_gathers_that_begin_together_by_hand() -> None:
    def longer(network_us: list[float], buckets: float = 2, share: float = 0.0) -> list[float]:
        row = np.array([network_us])
        found = gathered_together_us(
            np.full_like(row, 10.0), np.full_like(row, 1.0), row, np.full_like(row, buckets), share, stages=2
        )
        return [float(value) for value in found[0]]

    # The first chunk waits for a bucket of 4. At 15 the second one begins, where all is there since 8; the second
    # chunks of both stages are through at 16, before the first micro-batch comes back.
    assert longer([8.0] * 4) == [4, 0, 0, 0]
    # The first chunk's second half waits until 30. At 36 the second chunk has all; the third one begins at 47, and
    # waits for its second bucket from 52 to 60.
    assert longer([30.0] * 4) == [25, 0, 8, 0]
    # Alone the first of a pipeline is as if it were gathered with its pass.
    for network_us, share in ((8.0, 0.5), (80.0, 0.25)):
        alone = gathered_us(np.array([10.0]), np.array([network_us]), np.array([4.0]), share)
        assert longer([network_us] * 4, 4, share)[0] == pytest.approx(float(alone[0]))


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
