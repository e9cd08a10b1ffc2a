"""Eq. 7 by hand, and the laws that it obeys."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import UsageError
from kernelcast.runtime.pipeline.closed_form import ClosedForms, StageTimes, closed_form, closed_forms


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


@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**32))
def test_many_configurations_are_answered_as_each_is(pp: int, micro_batches: int, seed: int) -> None:
    forward, backward, reduce, optimizer = np.random.default_rng(seed).random((4, 3, pp))
    together = closed_forms(
        forward_us=forward,
        backward_us=backward,
        all_reduce_us=reduce,
        update_us=optimizer,
        micro_batches=micro_batches,
    )
    for row in range(3):
        stages = list(map(stage, *(times[row].tolist() for times in (forward, backward, reduce, optimizer))))
        alone = closed_form(stages, micro_batches)
        for name in ClosedForms.__slots__:
            assert getattr(together, name)[row] == getattr(alone, name)


def test_no_stages_at_once_are_refused() -> None:
    none = np.empty((2, 0))
    with pytest.raises(UsageError, match=r"^a timeline of 0 stages and 1 micro-batches, expected 1 or more$"):
        closed_forms(forward_us=none, backward_us=none, all_reduce_us=none, update_us=none, micro_batches=1)


def test_the_example_in_the_docs_runs() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "timeline.md"
    (example,) = re.findall(
        r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    exec(compile(example, str(page), "exec"), {})


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
