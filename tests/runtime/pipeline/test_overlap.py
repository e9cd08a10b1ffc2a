"""Collectives of an update overlapped with passes, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from kernelcast.runtime.pipeline.durations import (
    Overlap,
    beyond_us,
    gathered_together_us,
    gathered_us,
    slowed_us,
)
from kernelcast.runtime.pipeline.pass_times import step_timeline
from kernelcast.runtime.pipeline.simulate import simulate
from tests.runtime.pipeline.questions import uniform


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


def test_all_reduces_take_turns_with_what_the_pass_sends_itself() -> None:
    def step_us(all_reduce_us: float, link_us: float, buckets: int = 4) -> float:
        row = np.zeros((1, 1))
        overlap = Overlap(first_us=row, last_us=row, buckets=row + buckets, link_us=row + link_us)
        durations = replace(uniform(1, 1, 4), all_reduce_us=row + all_reduce_us, overlap=overlap)
        found = simulate(schedule="1f1b", pp=1, micro_batches=3, durations=durations)
        [stage] = step_timeline(schedule="1f1b", pp=1, micro_batches=3, durations=durations).stages
        assert stage.update.end_us == found.step_us[0]
        return stage.update.end_us

    # The pass from 11 to 15 uses the links for 2; three quarters of that lie after the first quarter, and delay the
    # all-reduce, which would end at 20.
    assert step_us(8, 2) == 11 + 1 + 8 + 1.5
    assert step_us(8, 2, buckets=1) == 15 + 8
    # Three pieces of half a µs fit between.
    assert step_us(2, 2) == 15 + 0.5
    assert step_us(0, 4) == 15


def test_pieces_of_all_reduces_in_a_list_of_passes() -> None:
    # The last backward passes of two chunks on a stage, of 5 µs each, end at 35 and 45 (of 30 and 40): see below.
    durations = replace(
        uniform(2, 10, 10, virtual_stages=2),
        all_reduce_us=np.array([[12.0, 0.0]]),
        update_us=np.array([[1.0, 1.0]]),
    )
    timeline = step_timeline(
        schedule="interleaved", pp=2, micro_batches=2, virtual_stages=2, durations=durations, buckets=(4, 1)
    )
    first, second = timeline.stages
    ends = [end for one, end in zip(first.passes, first.ends_us, strict=True) if one[::2] == ("backward", 1)]
    assert ends == [40, 50]
    # A chunk has half of the 12: its first quarter is ready a quarter into the pass; then 6 of network for a pass of 5.
    assert [(one.start_us, one.end_us) for one in first.all_reduces] == [
        (35 + 1.25, 35 + 1.25 + 6),
        (45 + 1.25, 45 + 1.25 + 6),
    ]
    assert first.update.start_us == 52.25
    assert (second.all_reduces, second.update.duration_us) == ((), 1)


def test_all_reduces_of_later_stages_hide_behind_earlier_stages() -> None:
    durations = replace(uniform(3, 1, 2), all_reduce_us=np.array([[1.0, 3.0, 5.0]]))
    found = simulate(schedule="1f1b", pp=3, micro_batches=4, durations=durations)
    assert found.compute_end_us[0].tolist() == [18, 16, 14]
    assert found.all_reduce_end_us[0].tolist() == [19, 19, 19]


def test_buckets_overlapped_with_a_pass_by_hand() -> None:
    # 4 buckets of 8 µs in all and a pass of 20: three of them overlap with it, and it loses half of their 6 µs.
    def slowed(pass_us: float, network_us: float, buckets: float, share: float, link_us: float = 0) -> float:
        return float(slowed_us(*map(np.array, (pass_us, network_us, buckets)), share, np.array(link_us)))

    assert slowed(20, 8, 4, 0.5) == 3
    assert slowed(20, 8, 4, 0) == slowed(20, 8, 1, 1) == slowed(20, 0, 4, 1) == 0
    # With a long collective a pass of 20 takes 32: it loses half of the three quarters that overlap with the network.
    assert slowed(20, 800, 4, 0.5) == pytest.approx(12)
    assert pytest.approx(32) == 20 + 0.5 * 0.75 * 32
    # If it uses the links itself for 4 of its 32, nothing overlaps with these.
    assert slowed(20, 800, 4, 0.5, 4) == pytest.approx((20 - 0.375 * 4) / (1 - 0.375) - 20)
    assert slowed(20, 8, 4, 0.5, 4) == 3
    # With ever more buckets the law of blocks: max(c + e · n, n) for compute c overlapped with n.
    for network in (8.0, 30.0, 60.0):
        ends = 20 + slowed(20, network, 1e9, 0.25)
        assert max(ends, network) == pytest.approx(max(20 + 0.25 * network, network))


def test_parameters_that_arrive_in_buckets_by_hand() -> None:
    def gathered(
        pass_us: float, network_us: float, buckets: float, share: float = 0.0, link_us: float = 0
    ) -> float:
        return float(gathered_us(*map(np.array, (pass_us, network_us, buckets)), share, np.array(link_us)))

    assert gathered(20, 8, 1) == 8  # all of it before the pass
    assert gathered(20, 8, 4) == 2  # the first bucket
    assert (
        gathered(20, 80, 4) == 80 + 5 - 20
    )  # the network is the slower one: the last quarter of the pass is left
    assert gathered(20, 8, 4, 0.5) == 2 + 3
    # Of its own 8 on the same links the last quarter of the pass has 2, after all parameters have arrived.
    assert gathered(20, 80, 4, link_us=8) == 80 + 6 + 5 - 20
    assert gathered(20, 8, 4, link_us=8) == 2
    assert gathered(20, 80, 1, link_us=8) == 80
    assert gathered(20, 0, 4, 0.5) == 0


def test_what_a_pass_leaves_of_a_collective_slows_the_next_ones() -> None:
    left_us, pass_us = np.array([0.0, 8.0, 80.0]), np.full(3, 10.0)
    # Three more passes of 10 run before the next chunk's gradients are complete.
    assert beyond_us(left_us, pass_us, 0.5, 4).tolist() == [0, 0.5 * 8 / 4, 0.5 * 30 / 4]
    assert beyond_us(left_us, pass_us, 0.5, 1).tolist() == [0, 0, 0]


def test_gathers_that_begin_together_by_hand() -> None:
    def longer(network_us: list[float], buckets: float = 2, share: float = 0.0) -> list[float]:
        row = np.array([network_us])
        found = gathered_together_us(
            np.full_like(row, 10.0),
            np.full_like(row, 1.0),
            row,
            np.full_like(row, buckets),
            share,
            np.zeros_like(row),
            stages=2,
        )
        return [float(value) for value in found[0]]

    # The first chunk waits for a bucket of 4. At 15 the second one begins, whose buckets arrived at 8; the second
    # chunks of both stages are done at 16, before the first micro-batch comes back.
    assert longer([8.0] * 4) == [4, 0, 0, 0]
    # The first chunk's second half waits until 30. At 36 the second chunk has all; the third one begins at 47, and
    # waits for its second bucket from 52 to 60.
    assert longer([30.0] * 4) == [25, 0, 8, 0]
    # What second chunks gather before their first pass, 8, slows a stage by 4; each of two stages shows half of it.
    assert longer([8.0] * 4, share=0.5) == [6, 0, 2, 2]
    # Alone the first of a pipeline is as if it were gathered with its pass.
    for network_us, share in ((8.0, 0.5), (80.0, 0.25)):
        alone = gathered_us(np.array([10.0]), np.array([network_us]), np.array([4.0]), share, np.zeros(1))
        assert longer([network_us] * 4, 4, share)[0] == pytest.approx(float(alone[0]))
