"""Laws that every simulated step obeys, and the closed forms of uniform stages."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kernelcast.runtime.pipeline.durations import PER_CHUNK, PER_STAGE
from kernelcast.runtime.pipeline.simulate import closed_forms, simulate
from tests.runtime.pipeline.questions import Question, few, questions, relaxed, uniform


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
