"""Eq. 7 by hand, and the laws that it obeys."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import UsageError
from kernelcast.runtime.pipeline.simulate import StepTimes, closed_forms

Stage = tuple[float, float, float, float]
"""Forward, backward, all-reduce, update, in µs."""


def steps(*pipelines: list[Stage], micro_batches: int) -> StepTimes:
    """Every pipeline is a configuration; all have as many stages."""
    times = np.array(pipelines, dtype=np.float64).reshape(len(pipelines), -1, 4)
    forward_us, backward_us, all_reduce_us, update_us = np.moveaxis(times, 2, 0)
    return closed_forms(
        forward_us=forward_us,
        backward_us=backward_us,
        all_reduce_us=all_reduce_us,
        update_us=update_us,
        micro_batches=micro_batches,
    )


def step_us(pipeline: list[Stage], micro_batches: int) -> float:
    return float(steps(pipeline, micro_batches=micro_batches).step_us[0])


def test_eq_7() -> None:
    # Maxima from different stages: (3 − 1 + 2) · (7 + 9) = 64; all-reduce of the first stage 5; updates 3 and 4.
    found = steps([(7, 2, 5, 3), (3, 9, 100, 4)], micro_batches=3)
    assert found.pipeline_us.tolist() == [64]
    assert found.step_us.tolist() == [64 + 5 + 4]


def test_a_single_stage_runs_its_micro_batches_one_after_the_other() -> None:
    assert step_us([(2, 3, 0, 7)], 4) == 4 * 5 + 7


@pytest.mark.parametrize(("pipeline", "micro_batches"), [([], 1), ([(1, 1, 0, 0)], 0)])
def test_nonsense_is_refused(pipeline: list[Stage], micro_batches: int) -> None:
    with pytest.raises(
        UsageError, match=r"^a timeline of \d stages and \d micro-batches, expected 1 or more$"
    ):
        steps(pipeline, micro_batches=micro_batches)


def test_one_wrong_number_of_micro_batches_among_many_is_refused() -> None:
    ones = np.ones((3, 2))
    with pytest.raises(UsageError, match=r"^a timeline of 2 stages and 0 micro-batches, expected 1 or more$"):
        closed_forms(
            forward_us=ones,
            backward_us=ones,
            all_reduce_us=ones,
            update_us=ones,
            micro_batches=np.array([4.0, 0.0, 2.0]),
        )


@given(st.integers(1, 6), st.lists(st.integers(1, 40), min_size=3, max_size=3), st.integers(0, 2**32))
def test_many_configurations_are_answered_as_each_is(pp: int, micro_batches: list[int], seed: int) -> None:
    forward_us, backward_us, all_reduce_us, update_us = np.random.default_rng(seed).random((4, 3, pp))
    together = closed_forms(
        forward_us=forward_us,
        backward_us=backward_us,
        all_reduce_us=all_reduce_us,
        update_us=update_us,
        micro_batches=np.array(micro_batches, dtype=np.float64),
    )
    for row, m in enumerate(micro_batches):
        pipeline_us = (m - 1 + pp) * (max(forward_us[row]) + max(backward_us[row]))
        assert together.pipeline_us[row] == pipeline_us
        assert together.step_us[row] == pipeline_us + all_reduce_us[row, 0] + max(update_us[row])


def test_the_example_in_the_docs_runs() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "timeline.md"
    (example,) = re.findall(
        r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    exec(compile(example, str(page), "exec"), {})


times = st.floats(0, 1e9)
pipelines = st.lists(st.tuples(times, times, times, times), min_size=1, max_size=12)


@given(pipelines, st.integers(1, 200))
def test_laws(pipeline: list[Stage], micro_batches: int) -> None:
    found = step_us(pipeline, micro_batches)
    busiest_us = max(
        micro_batches * (forward + backward) + update for forward, backward, _, update in pipeline
    )
    assert found >= busiest_us * (1 - 1e-12)
    assert step_us(pipeline, micro_batches + 1) >= found
    slower = [(forward, backward + 1, *rest) for forward, backward, *rest in pipeline]
    assert step_us(slower, micro_batches) >= found
