"""ZB-V, DualPipe and DualPipe-V: published bubbles, and what every order and every simulated step has to obey."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.runtime.pipeline.durations import Durations, Overlap
from kernelcast.runtime.pipeline.pass_times import step_timeline
from kernelcast.runtime.pipeline.schedules import Kind, Pass, is_pair, saved_in_pairs_us, stage_orders, units
from kernelcast.runtime.pipeline.simulate import simulate
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS

VIRTUAL_STAGES = {"zb_v": 2, "dualpipe": 1, "dualpipe_v": 2}
relaxed = settings(deadline=None, max_examples=120)


def shape(schedule: str, pp: int, micro_batches: int) -> dict[str, Any]:
    return {
        "schedule": schedule,
        "pp": pp,
        "micro_batches": micro_batches,
        "virtual_stages": VIRTUAL_STAGES[schedule],
    }


def place(schedule: str, pp: int, chunk: int) -> int:
    """Stages 0 … pp − 1 and back; of two copies of the model the second one begins on the last stage."""
    return [*range(pp), *reversed(range(pp))][chunk]


@st.composite
def shapes(draw: st.DrawFn, most_rounds: int = 5) -> dict[str, Any]:
    schedule = draw(st.sampled_from(sorted(VIRTUAL_STAGES)))
    pp = draw(st.integers(1, 3)) * 2 if schedule == "dualpipe" else draw(st.integers(2, 6))
    micro_batches = draw(st.integers(1 if schedule == "zb_v" else 2 * pp, most_rounds * pp))
    return shape(schedule, pp, micro_batches + (schedule == "dualpipe" and micro_batches % 2))


def uniform(
    pp: int, forward: float, backward: float, weight: float, saved: tuple[float, float] = (0, 0)
) -> Durations:
    none = np.zeros((1, 2 * pp))
    return Durations(
        forward_us=none + forward,
        backward_us=none + backward,
        weight_us=none + weight,
        send_forward_us=none,
        send_backward_us=none,
        all_reduce_us=np.zeros((1, pp)),
        update_us=np.zeros((1, pp)),
        saved_forward_us=none + saved[0],
        saved_backward_us=none + saved[1],
    )


def drawn(seed: int, pp: int, *, style: str, configs: int = 1, overlaps: bool = False) -> Durations:
    """Times of any size: `whole` ones have ties and zeros."""
    rng = np.random.default_rng(seed)

    def times(columns: int = 2 * pp) -> Any:
        if style == "whole":
            return rng.integers(0, 4, (configs, columns)).astype(np.float64)
        return np.exp(rng.uniform(-2, 12, (configs, columns)))

    forward, backward = times(), times()
    return Durations(
        forward_us=forward,
        backward_us=backward,
        weight_us=times(),
        send_forward_us=times(),
        send_backward_us=times(),
        all_reduce_us=times(pp),
        update_us=times(pp),
        saved_forward_us=np.minimum(forward, times()),
        saved_backward_us=np.minimum(backward, times()),
        overlap=Overlap(
            first_us=times(),
            last_us=times(),
            buckets=rng.integers(1, 9, (configs, pp)).astype(np.float64),
            link_us=times(pp),
        )
        if overlaps
        else None,
    )


def test_zb_v_by_hand() -> None:
    # torch's ScheduleZBVZeroBubble with 2 ranks and 4 micro-batches; lower case is the stage's second chunk.
    def shown(stage: int) -> str:
        order = stage_orders("zb_v", 2, 4, 2)[stage]
        names = {Kind.FORWARD: "f", Kind.BACKWARD: "b", Kind.WEIGHT: "w"}
        return " ".join(
            f"{names[one.kind] if one.chunk >= 2 else names[one.kind].upper()}{one.micro_batch}"
            for one in order
        )

    assert shown(0) == ("F0 F1 F2 f0 b0 w0 f1 b1 w1 F3 B0 W0 f2 b2 w2 B1 W1 f3 b3 w3 B2 W2 B3 W3")
    assert shown(1) == ("F0 f0 F1 f1 b0 w0 F2 B0 W0 f2 b1 w1 F3 B1 W1 f3 b2 w2 B2 b3 B3 W2 w3 W3")


def test_dualpipe_by_hand() -> None:
    # Two stages, 4 micro-batches; 2 and 3 enter on the last stage: the authors' program on two ranks.
    def shown(stage: int) -> str:
        names = {Kind.FORWARD: "F", Kind.BACKWARD: "B", Kind.WEIGHT: "W"}
        return " ".join(
            "+".join(f"{names[one.kind]}{one.micro_batch}" for one in unit)
            for unit in units(stage_orders("dualpipe", 2, 4)[stage])
        )

    assert shown(0) == "F0 F2 F1 B2+W2 F3+B0+W0 B3+W3 B1 W1"
    assert shown(1) == "F2 F0 F3 B0+W0 F1+B2+W2 B1+W1 B3 W3"


@given(shapes())
@relaxed
def test_every_stage_runs_every_pass_once_and_in_time(asked: dict[str, Any]) -> None:
    schedule, pp, micro_batches = asked["schedule"], asked["pp"], asked["micro_batches"]
    for stage, order in enumerate(stage_orders(**asked)):
        chunks = [chunk for chunk in range(2 * pp) if place(schedule, pp, chunk) == stage]
        expected = {
            (kind, chunk, index)
            for kind in Kind
            for chunk in chunks
            for index in range(micro_batches)
            # Half of the micro-batches go through either copy of the model.
            if schedule != "dualpipe" or (chunk >= pp) == (index >= micro_batches // 2)
        }
        assert Counter(one[:3] for one in order) == Counter(expected)
        position = {one[:3]: index for index, one in enumerate(order)}
        for (kind, *where), index in position.items():
            if kind is Kind.FORWARD:
                assert index < position[(Kind.BACKWARD, *where)] < position[(Kind.WEIGHT, *where)]
        assert not order[-1].joined
        if not SCHEDULE_KINDS[schedule].pairs:
            assert not any(one.joined for one in order)


@given(shapes(most_rounds=8))
@relaxed
def test_activations_that_a_stage_keeps(asked: dict[str, Any]) -> None:
    schedule, pp = asked["schedule"], asked["pp"]
    for order in stage_orders(**asked):
        step = {Kind.FORWARD: 1, Kind.BACKWARD: 0, Kind.WEIGHT: -1}
        most = max(accumulate(step[one.kind] for one in order))
        if schedule == "zb_v":
            # In chunks of half a stage: 1F1B's memory on its first stage (arXiv 2401.10241, section 6).
            assert most <= 2 * pp
        else:
            # PP + 1 of a model's PP chunks (arXiv 2412.19437, table 2); a DualPipe-V has PP/2 stages.
            assert most <= (pp if schedule == "dualpipe" else 2 * pp) + 1


@given(shapes(), st.integers(0, 2**32), st.sampled_from(("whole", "wild")), st.booleans())
@relaxed
def test_every_unit_starts_as_soon_as_stage_and_inputs_allow(
    asked: dict[str, Any], seed: int, style: str, overlaps: bool
) -> None:
    schedule, pp = asked["schedule"], asked["pp"]
    durations = drawn(seed, pp, style=style, overlaps=overlaps)
    timeline = step_timeline(**asked, durations=durations)
    last_chunk = pp - 1 if schedule == "dualpipe" else 2 * pp - 1
    times: dict[tuple[Any, ...], tuple[float, float, float]] = {}
    for stage in timeline.stages:
        for one, *when in zip(stage.passes, stage.starts_us, stage.ends_us, stage.sent_us, strict=True):
            times[one[:3]] = (when[0], when[1], when[2])
    first, last = defaultdict[int, list[Pass]](list), defaultdict[int, list[Pass]](list)
    for stage in timeline.stages:
        for one in stage.passes:
            (first if one.kind is Kind.FORWARD else last)[one.chunk].append(one)
    for stage in timeline.stages:
        free_us = 0.0
        for unit in units(stage.passes):
            ready = [free_us]
            for kind, chunk, index, _ in unit:
                model_chunk = chunk % pp if schedule == "dualpipe" else chunk
                if kind is Kind.FORWARD and model_chunk:
                    sent_us = times[kind, chunk - 1, index][2]
                    ready.append(sent_us + timeline.send_forward_us[chunk - 1])
                if kind is Kind.BACKWARD and model_chunk < last_chunk:
                    ready.append(times[kind, chunk + 1, index][2] + timeline.send_backward_us[chunk + 1])
            start_us = max(ready)
            for one in unit:
                length = {
                    Kind.FORWARD: durations.forward_us,
                    Kind.BACKWARD: durations.backward_us,
                    Kind.WEIGHT: durations.weight_us,
                }[one.kind][0, one.chunk]
                if is_pair(unit) and one.kind is not Kind.WEIGHT:
                    saved = (
                        durations.saved_forward_us
                        if one.kind is Kind.FORWARD
                        else durations.saved_backward_us
                    )
                    assert saved is not None
                    length -= saved[0, one.chunk]
                if durations.overlap is not None and one == first[one.chunk][0]:
                    length += durations.overlap.first_us[0, one.chunk]
                if durations.overlap is not None and one == last[one.chunk][-1]:
                    length += durations.overlap.last_us[0, one.chunk]
                begun_us, end_us, _ = times[one[:3]]
                assert begun_us == pytest.approx(start_us, rel=1e-11, abs=1e-6)
                assert end_us == pytest.approx(start_us + length, rel=1e-11, abs=1e-6)
                start_us = free_us = end_us
            assert {times[one[:3]][2] for one in unit} == {free_us}


@given(
    shapes(), st.integers(0, 200), st.integers(0, 2**32), st.sampled_from(("whole", "wild")), st.booleans()
)
@settings(relaxed, max_examples=40)
def test_the_simulation_is_the_sum_of_its_passes_to_the_bit(
    asked: dict[str, Any], more: int, seed: int, style: str, overlaps: bool
) -> None:
    # With many more micro-batches the middle repeats, and is multiplied rather than run.
    asked = asked | {"micro_batches": asked["micro_batches"] + 2 * more}
    durations = drawn(seed, asked["pp"], style=style, configs=2, overlaps=overlaps)
    simulated = simulate(**asked, durations=durations, buckets=3)
    for row in range(2):
        timeline = step_timeline(**asked, durations=durations.take(slice(row, row + 1)), buckets=3)
        assert simulated.compute_end_us[row].tolist() == [stage.ends_us[-1] for stage in timeline.stages]
        assert simulated.end_us[row].tolist() == [stage.update.end_us for stage in timeline.stages]
        for stage, reduced_us in zip(timeline.stages, simulated.all_reduce_end_us[row], strict=True):
            assert reduced_us == (stage.all_reduces[-1].end_us if stage.all_reduces else stage.ends_us[-1])


@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipe_v"])
@given(st.integers(2, 5), st.integers(0, 60), *3 * [st.integers(1, 20)])
@relaxed
def test_the_bubble_of_dualpipe(
    schedule: str, half: int, more: int, forward: int, weight: int, longer: int
) -> None:
    # (PP/2 − 1)(F&B + B − 3W) of PP chunks, B the whole backward pass (arXiv 2412.19437, table 2), reached where
    # input gradients take what the forward pass takes and pairs save nothing. Longer ones only shorten it.
    folded = schedule == "dualpipe_v"
    pp = half if folded else 2 * half
    micro_batches = 2 * pp + 2 * more
    chunk_passes = micro_batches * (2 if folded else 1)

    def bubble(backward: float) -> tuple[float, float]:
        durations = uniform(pp, forward, backward, weight)
        pipeline_us = float(
            simulate(**shape(schedule, pp, micro_batches), durations=durations).pipeline_us[0]
        )
        both = forward + 2 * (backward + weight)
        return pipeline_us - chunk_passes * (forward + backward + weight), (half - 1) * (both - 3 * weight)

    weight = min(weight, forward)
    assert bubble(forward)[0] == pytest.approx(bubble(forward)[1], abs=1e-6)
    assert bubble(forward + longer)[0] <= bubble(forward + longer)[1] + 1e-6


def test_pairs_take_what_their_passes_do_not_hide() -> None:
    # On two stages neither ever waits: of 12 micro-batches 6 per copy, all but 3 backward passes are in pairs.
    exposed, hidden = (
        simulate(**shape("dualpipe", 2, 12), durations=uniform(2, 10, 12, 8, saved)).step_us[0]
        for saved in ((0.0, 0.0), (3.0, 4.0))
    )
    pairs = sum(map(is_pair, units(stage_orders("dualpipe", 2, 12)[0])))
    assert exposed == 12 * (10 + 12 + 8)
    assert pairs == 9
    assert exposed - hidden == 9 * (3 + 4)


def test_what_pairs_save_in_a_step_by_hand() -> None:
    # See the orders of two stages above: F3 + B0 on the first, chunks 3 and 0; F1 + B2 on the other, chunks 1 and 2.
    durations = replace(
        uniform(2, 100, 100, 1),
        saved_forward_us=np.array([[1.0, 2, 3, 4]]),
        saved_backward_us=np.array([[10.0, 20, 30, 40]]),
    )
    assert saved_in_pairs_us(durations, "dualpipe", 4).tolist() == [[4 + 10, 2 + 30]]
    assert saved_in_pairs_us(durations, "zb_v", 4, 2).tolist() == [[0, 0]]
    # As many pairs more as micro-batches on two stages, half of them of either copy.
    more = saved_in_pairs_us(durations, "dualpipe", 6) - saved_in_pairs_us(durations, "dualpipe", 4)
    assert more.tolist() == [[1 + 4 + 10 + 40 - 0, 2 + 3 + 20 + 30 - 0]]


@pytest.mark.parametrize(("schedule", "pp"), [("zb_v", 3), ("dualpipe", 4), ("dualpipe_v", 2)])
def test_a_million_micro_batches_follow_from_the_few_that_repeat(schedule: str, pp: int) -> None:
    """By the published bubbles, see below; run one by one they would take minutes."""
    rounds, each = 1_000_000, 3
    found = simulate(**shape(schedule, pp, rounds), durations=uniform(pp, each, each, each))
    # Of DualPipe's two halves of two stages each: (2 − 1)(F&B + B − 3W), a B twice and all else once as long as F.
    passes, bubble = {
        "zb_v": (2 * rounds, pp - 1),
        "dualpipe": (rounds, 5 - 3),
        "dualpipe_v": (2 * rounds, 5 - 3),
    }[schedule]
    assert found.pipeline_us[0] == (3 * passes + bubble) * each


@given(st.integers(2, 9), st.integers(0, 60), st.integers(1, 20))
@relaxed
def test_zb_v_has_no_bubble_where_its_three_passes_take_the_same(pp: int, more: int, each: int) -> None:
    # Stage s begins s passes after the first and never waits (arXiv 2401.10241, section 6).
    micro_batches = 2 * pp - 1 + more
    timeline = step_timeline(**shape("zb_v", pp, micro_batches), durations=uniform(pp, each, each, each))
    for stage in timeline.stages:
        assert stage.starts_us[0] == stage.stage * each
        assert stage.ends_us[-1] - stage.starts_us[0] == pytest.approx(6 * each * micro_batches)


@given(shapes(), st.integers(0, 2**32), st.sampled_from(("whole", "wild")))
@relaxed
def test_no_step_is_shorter_than_the_work_of_a_stage(asked: dict[str, Any], seed: int, style: str) -> None:
    pp, micro_batches = asked["pp"], asked["micro_batches"]
    durations = replace(drawn(seed, pp, style=style), saved_forward_us=None, saved_backward_us=None)
    passes = (durations.forward_us + durations.backward_us + durations.weight_us)[0]
    of_each = micro_batches / SCHEDULE_KINDS[asked["schedule"]].copies
    busiest = of_each * (passes[:pp] + passes[pp:][::-1]) + durations.update_us[0]
    assert simulate(**asked, durations=durations).step_us[0] >= busiest.max() * (1 - 1e-11)
