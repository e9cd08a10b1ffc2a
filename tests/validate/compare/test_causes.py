"""Each cause is named when a step that ran as predicted is changed in that one thing, and no other is."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelcast.runtime import Estimate
from kernelcast.store.rank_causes import RankFinding
from kernelcast.validate.compare.causes import Cause, find_causes
from kernelcast.validate.compare.rows import collective_rows, operator_rows, part_rows, predicted_step
from kernelcast.validate.compare.traced_steps import TracedSteps, Work

Ran = Callable[..., TracedSteps]
SCORES = Work(
    rank=0, step="", class_="compute", pass_="forward", operator="softmax", role="", vector=(2, 4, 32, 32), variant="",
    host_operator="", collective="", group_size=None, message_bytes=None, time_s=4e-4, busy_s=4e-4, launches=2,
)  # fmt: skip


def causes(traced: TracedSteps, estimate: Estimate) -> tuple[Cause, ...]:
    predicted = predicted_step(estimate, traced.ranks)
    return find_causes(
        traced,
        estimate,
        operator_rows(traced, predicted, estimate),
        collective_rows(traced, predicted, estimate),
    )


def only(traced: TracedSteps, estimate: Estimate) -> Cause:
    [cause] = causes(traced, estimate)
    return cause


def test_a_step_as_predicted_has_no_cause(ran: Ran, estimate: Estimate) -> None:
    traced = ran()
    assert causes(traced, estimate) == ()
    predicted = predicted_step(estimate, traced.ranks)
    for row in (*operator_rows(traced, predicted, estimate), *collective_rows(traced, predicted, estimate)):
        assert row.excess_s == pytest.approx(0, abs=1e-12)
    parts = {row.name: row for row in part_rows(traced, predicted)}
    assert list(parts) == ["forward", "backward", "update", "communication"]
    assert sum(row.measured_s or 0 for row in parts.values()) == pytest.approx(estimate.step_time_s)
    assert all(row.measured_s == pytest.approx(row.predicted_s) for row in parts.values())


def test_another_attention_kernel(ran: Ran, estimate: Estimate) -> None:
    traced = ran(lambda work: None if work.operator == "flash_attention" else work, more=(SCORES,))
    cause = only(traced, estimate)
    assert cause.kind == "attention"
    assert cause.line == (
        "attention ran as products with a softmax, predicted is flash_attention: not the expected attention kernel"
    )
    # Two layers of 10 µs forward and 20 µs backward were predicted.
    assert cause.excess_s == pytest.approx(4e-4 - 6e-5)


def test_a_slower_kernel_of_the_same_attention(ran: Ran, estimate: Estimate) -> None:
    def slower(work: Work) -> Work:
        is_attention = work.operator == "flash_attention"
        return replace(work, time_s=4 * work.time_s, variant="memory-efficient") if is_attention else work

    cause = only(ran(slower), estimate)
    assert cause.line == (
        "attention (memory-efficient) takes 4.00 × the predicted time: perhaps not the expected kernel"
    )
    assert cause.excess_s == pytest.approx(3 * 6e-5)
    # Where a kernel was asked for, it is the one that was expected.
    asked = replace(estimate, parallelism=replace(estimate.parallelism, attention_kernel="flash-2"))
    assert only(ran(slower), asked).line.endswith(": perhaps not the expected kernel, flash-2")


def test_a_slow_rank_explains_who_waits_for_it(ran: Ran, estimate: Estimate) -> None:
    def waiting(work: Work) -> Work:
        is_it = work.rank == 0 and work.class_ == "communication"
        return replace(work, time_s=work.time_s + 1e-4) if is_it else work

    assert [cause.kind for cause in causes(ran(waiting), estimate)] == ["waiting"]
    late = RankFinding(kind="slow_device", rank=1, group_ranks="", delay_ms=0.1, line="rank 1 arrives last")
    cause = only(replace(ran(waiting), findings=(late,)), estimate)
    assert (cause.kind, cause.excess_s, cause.line) == ("rank", pytest.approx(1e-4), late.line)
    link = replace(late, kind="slow_link", rank=None, group_ranks="[0, 1]")
    assert only(replace(ran(waiting), findings=(link,)), estimate).kind == "link"


def test_a_late_host(ran: Ran, estimate: Estimate) -> None:
    cause = only(ran(late_s={1: 2e-3}), estimate)
    assert (cause.kind, cause.excess_s) == ("host", 2e-3)
    assert cause.line.startswith("gaps of the host of rank 1: the device waits 2.0 ms")


def test_an_all_reduce_that_nobody_predicted(ran: Ran, estimate: Estimate) -> None:
    again = replace(
        SCORES, class_="communication", pass_="once", operator="", vector=(), collective="all_reduce",
        message_bytes=50 << 20, time_s=1e-3, launches=2,
    )  # fmt: skip
    cause = only(ran(more=(again,)), estimate)
    assert cause.kind == "all_reduce"
    assert "exposed all_reduce: 3 calls with 100." in cause.line
    assert "predicted are 1 with" in cause.line
    assert cause.excess_s == pytest.approx(1e-3, rel=0.01)


def test_a_slow_network(ran: Ran, estimate: Estimate) -> None:
    def slower(work: Work) -> Work:
        return replace(work, time_s=1e-3) if work.class_ == "communication" else work

    cause = only(ran(slower), estimate)
    assert cause.kind == "all_reduce"
    assert "1.0 ms a step on the rank that waits least" in cause.line


def test_waiting_for_a_rank_that_was_not_traced(ran: Ran, estimate: Estimate) -> None:
    def waits(work: Work) -> Work:
        is_it = work.rank == 0 and work.class_ == "communication"
        return replace(work, time_s=work.time_s + 1e-3) if is_it else work

    cause = only(ran(waits), estimate)
    assert (cause.kind, cause.excess_s) == ("waiting", pytest.approx(1e-3))


def test_lower_clocks(ran: Ran, estimate: Estimate) -> None:
    def slower(work: Work) -> Work:
        return replace(work, time_s=3 * work.time_s) if work.operator == "gemm" else work

    cause = only(ran(slower), estimate)
    assert cause.kind == "clocks"
    assert "take longer, 3.00 × the predicted time (3.00 to 3.00), on every rank" in cause.line


def test_one_slow_product_is_no_matter_of_clocks(ran: Ran, estimate: Estimate) -> None:
    def slower(work: Work) -> Work:
        is_it = work.operator == "gemm" and work.vector[2] == 3 * 64 and work.pass_ == "forward"
        return replace(work, time_s=10 * work.time_s) if is_it else work

    cause = only(ran(slower), estimate)
    assert cause.kind == "operator"
    assert cause.line.startswith(
        "gemm qkv (forward) takes 0.20 ms a step, predicted are 0.02 ms (0.01 to 0.04)"
    )


def test_kernels_that_nobody_predicted(ran: Ran, estimate: Estimate) -> None:
    copies = replace(SCORES, operator="", vector=(), host_operator="aten::copy_", time_s=1e-3)
    cause = only(ran(more=(copies,)), estimate)
    assert cause.kind == "unknown_kernels"
    assert "aten::copy_ (forward) 1.0 ms" in cause.line


def test_uneven_steps(ran: Ran, estimate: Estimate) -> None:
    def slower(work: Work) -> Work:
        return replace(work, time_s=3 * work.time_s) if work.step == "ProfilerStep#3" else work

    assert only(ran(slower), estimate).kind == "uneven"


def test_a_workload_is_matched_by_its_size_within_one_operator(ran: Ran, estimate: Estimate) -> None:
    """A loss over [1, b · l, v] with the vocabulary as it is, not padded, is the predicted loss."""

    def seen(work: Work) -> Work:
        return replace(work, vector=(1, 64, 250)) if work.operator == "cross_entropy" else work

    assert causes(ran(seen), estimate) == ()
