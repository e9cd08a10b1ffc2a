"""Eq. 7 by hand, and the laws that it obeys."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import UsageError
from kernelcast.runtime.pipeline.closed_form import StageTimes, closed_form


def stage(
    forward: float, backward: float, all_reduce: float = 0, optimizer: float = 0, gather: float = 0
) -> StageTimes:
    return StageTimes(
        forward_us=forward,
        backward_us=backward,
        all_reduce_us=all_reduce,
        optimizer_us=optimizer,
        all_gather_us=gather,
    )


def test_eq_7() -> None:
    # Maxima from different stages: (3 − 1 + 2) · (7 + 9) = 64; all-reduce of the first stage 5;
    # updates 1 + 2 and 3 + 1.
    timeline = closed_form([stage(7, 2, 5, 1, 2), stage(3, 9, 100, 3, 1)], 3)
    assert (timeline.max_forward_us, timeline.max_backward_us, timeline.pipeline_us) == (7, 9, 64)
    assert (timeline.all_reduce_us, timeline.max_update_us, timeline.slowest_update_stage) == (5, 4, 1)
    assert timeline.step_us == 64 + 5 + 4


def test_a_single_stage_runs_its_micro_batches_one_after_the_other() -> None:
    assert closed_form([stage(2, 3, 0, 7)], 4).step_us == 4 * 5 + 7


@pytest.mark.parametrize(("stages", "micro_batches"), [((), 1), ((stage(1, 1),), 0)])
def test_nonsense_is_refused(stages: Sequence[StageTimes], micro_batches: int) -> None:
    with pytest.raises(
        UsageError, match=r"^a timeline of \d stages and \d micro-batches, expected 1 or more$"
    ):
        closed_form(stages, micro_batches)


times = st.floats(0, 1e9)
pipelines = st.lists(st.builds(stage, times, times, times, times, times), min_size=1, max_size=12)


@given(pipelines, st.integers(1, 200))
def test_laws(stages: list[StageTimes], micro_batches: int) -> None:
    step_us = closed_form(stages, micro_batches).step_us
    busiest_us = max(micro_batches * (one.forward_us + one.backward_us) + one.update_us for one in stages)
    assert step_us >= busiest_us * (1 - 1e-12)
    assert closed_form(stages, micro_batches + 1).step_us >= step_us
    slower = [stage(s.forward_us, s.backward_us + 1, s.all_reduce_us, s.optimizer_us) for s in stages]
    faster = [stage(s.forward_us, s.backward_us, s.all_reduce_us, s.optimizer_us) for s in stages]
    assert closed_form(slower, micro_batches).step_us >= closed_form(faster, micro_batches).step_us
