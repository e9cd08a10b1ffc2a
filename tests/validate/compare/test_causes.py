"""Each cause is named when a step that ran as predicted is changed in that one thing, and no other is."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kernelcast.runtime import Estimate
from kernelcast.store.rank_causes import RankFinding
from kernelcast.validate.compare.causes import Cause, find_causes
from kernelcast.validate.compare.rows import Row, collective_rows, operator_rows, part_rows, predicted_step
from kernelcast.validate.compare.traced_steps import Gap, TracedSteps, Work

Ran = Callable[..., TracedSteps]
SCORES = Work(
    rank=0, step="", class_="compute", pass_="forward", operator="softmax", role="", vector=(2, 4, 32, 32), variant="",
    host_operator="", collective="", message_bytes=None, time_s=4e-4, launches=2,
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
    assert cause.line == "exposed all_reduce: 3 calls with 100.5 MiB a step, predicted are 1 with 0.5 MiB"
    assert cause.excess_s == pytest.approx(1e-3, rel=0.01)


def test_waiting_for_a_rank_that_was_not_traced(ran: Ran, estimate: Estimate) -> None:
    def waits(work: Work) -> Work:
        is_it = work.rank == 0 and work.class_ == "communication"
        return replace(work, time_s=work.time_s + 1e-3) if is_it else work

    cause = only(ran(waits), estimate)
    assert (cause.kind, cause.excess_s) == ("waiting", pytest.approx(1e-3))


def test_a_row_counts_what_was_predicted_and_what_ran(ran: Ran, estimate: Estimate) -> None:
    copies = replace(SCORES, operator="", vector=(), host_operator="aten::copy_", launches=4)
    traced = ran(lambda work: None if work.operator == "gelu" else work, more=(copies,))
    rows = {
        (row.name, row.pass_): row
        for row in operator_rows(traced, predicted_step(estimate, traced.ranks), estimate)
    }
    unknown, missing = rows["aten::copy_", "forward"], rows["gelu", "forward"]
    assert (unknown.calls, unknown.launches, unknown.predicted_s, unknown.measured_s) == (0, 4, None, 4e-4)
    assert (missing.calls, missing.launches, missing.predicted_s, missing.measured_s) == (
        2, 0, pytest.approx(2e-5), None
    )  # fmt: skip
    assert unknown.excess_s == 4e-4
    assert missing.excess_s == pytest.approx(-2e-5)
    both = rows["gemm qkv", "forward"]
    assert (both.calls, both.launches, both.ratio) == (2, 2, pytest.approx(1))


def test_an_update_is_a_row_where_it_ran_or_was_predicted(ran: Ran, estimate: Estimate) -> None:
    predicted = predicted_step(estimate, (0, 1))
    without = replace(predicted, calls=tuple(row for row in predicted.calls if row.pass_ != "update"))
    for traced, wanted in (
        (ran(lambda work: None if work.pass_ == "update" else work), predicted),
        (ran(), without),
    ):
        [update] = [row for row in operator_rows(traced, wanted, estimate) if row.pass_ == "update"]
        assert (update.measured_s is None, update.predicted_s is None) == (
            wanted is predicted,
            wanted is without,
        )
        assert (update.name == "update") == (wanted is without)


def test_a_late_host_among_ranks_that_are_late_alike(ran: Ran, estimate: Estimate) -> None:
    gaps = [
        Gap(rank=rank, time_s=2e-3, name="aten::mm", scope=scope) for rank, scope in ((0, ""), (1, "loss"))
    ]
    for late_s, words in (
        ({0: 1e-3, 1: 2e-3}, "gaps of the host of rank 1: the device waits 2.0 ms"),
        ({0: 1.1e-3, 1: 2e-3}, "gaps of the host: the device waits 2.0 ms"),
    ):
        line = only(ran(late_s=late_s), estimate).line
        assert line.startswith(words)
        assert line.endswith(" a step for its next launch")
        told = only(replace(ran(late_s=late_s), gaps=tuple(gaps)), estimate).line
        assert told == f"{line}; the longest, 2.0 ms, ends with aten::mm in loss"
    told = only(replace(ran(late_s={0: 3e-3}), gaps=tuple(gaps)), estimate).line
    assert told.endswith("; the longest, 2.0 ms, ends with aten::mm")


def test_a_data_loader_that_takes_more_than_half_of_the_gaps_is_named(ran: Ran, estimate: Estimate) -> None:
    traced = ran(late_s={0: 2e-3})
    for loader_s, named in ((1e-3, ""), (1.5e-3, "; the data loader takes 1.5 ms a step")):
        times = {(0, step): loader_s for step in traced.steps}
        assert only(replace(traced, loader_s=times), estimate).line.endswith(
            f" a step for its next launch{named}"
        )
    gap = Gap(rank=0, time_s=2e-3, name="aten::mm", scope="")
    gaps = (replace(gap, rank=1, time_s=5e-3), gap)  # of all ranks, the longest first
    line = only(replace(traced, loader_s=times, gaps=gaps), estimate).line
    assert line.endswith("; the data loader takes 1.5 ms a step; the longest, 2.0 ms, ends with aten::mm")


def test_uneven_steps(ran: Ran, estimate: Estimate) -> None:
    def slower(work: Work) -> Work:
        return replace(work, time_s=3 * work.time_s) if work.step == "ProfilerStep#3" else work

    cause = only(ran(slower), estimate)
    assert (cause.kind, cause.line) == ("uneven", "steps differ: 0.7 to 2.2 ms, the typical one 0.7 ms")
    assert cause.excess_s == pytest.approx(2 / 3 * estimate.step_time_s)


def row(name: str, measured_s: float | None, predicted_s: float | None, **known: Any) -> Row:
    """A row whose interval ends at twice the predicted time, of ranks that took alike."""
    by_rank = None if measured_s is None else {0: measured_s, 1: measured_s}
    high_s = None if predicted_s is None else 2 * predicted_s
    values = {"operator": name.split()[0], "pass_": "forward", "by_rank_s": by_rank, "high_s": high_s} | known
    return Row(name=name, measured_s=measured_s, predicted_s=predicted_s, **values)


PRODUCTS = (
    row("gemm qkv", 2.0, 1.0, by_rank_s={0: 1.5, 1: 2.5}),
    row("gemm up", 2.0, 1.0, by_rank_s={0: 2.0, 1: 0.0}),  # not on every rank
    row("gemm down", 9.0, 3.0, low_s=2.0),
)
SLOWER = (
    "clocks: matrix products of all shapes take longer, {} × the predicted time ({} to {}), on every rank: lower "
    "clocks, a power limit, or other work on the device"
)
SLOW_PRODUCTS = [
    ("operator", 4.5, "gemm down (forward) takes 9,000.00 ms a step, predicted are 3,000.00 ms (2,000.00 to 6,000.00)"),
    ("clocks", 2.5, SLOWER.format("3.00", "1.50", "3.00")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (  # A fifth of the time is 1.5 times slower at most: that is common, and is taken off what is slow itself.
            PRODUCTS,
            SLOW_PRODUCTS,
        ),
        (PRODUCTS[:2], []),  # of two nothing is common
        ([replace(one, measured_s=one.predicted_s) for one in PRODUCTS], []),
        (
            [*PRODUCTS, row("flash_attention", 5.0, 2.0, variants=("b", "a")), row("softmax", 0.5, None)],
            [
                SLOW_PRODUCTS[0],
                ("attention", 3.5, "attention ran as flash_attention and products with a softmax, predicted is "
                 "flash_attention: not the expected attention kernel"),
                SLOW_PRODUCTS[1],
            ],
        ),
        (
            [*PRODUCTS, row("flash_attention", 7.0, 2.0, variants=("b", "a"))],
            [
                SLOW_PRODUCTS[0],
                ("attention", 5.0 - 1.0, "attention (a, b) takes 3.50 × the predicted time: perhaps not the expected "
                 "kernel"),
                SLOW_PRODUCTS[1],
            ],
        ),
        ([*PRODUCTS, row("flash_attention", 6.0, 2.0)], SLOW_PRODUCTS),  # of the products and of its interval
        (
            [row("flash_attention", None, 2.0), row("gemm attention_scores", 3.0, None)],
            [("attention", 1.0, "attention ran as no kernel that is known, predicted is flash_attention: not the "
              "expected attention kernel")],
        ),
        (  # The five longest that are slow; a time in its interval is none.
            [*(row(f"layer_norm {n}", 3.0 + n, 1.0, low_s=0.5) for n in range(6, 0, -1)), row("gelu", 2.0, 1.0)],
            [
                ("operator", 2.0 + n, f"layer_norm {n} (forward) takes {3 + n},000.00 ms a step, predicted are "
                 "1,000.00 ms (500.00 to 2,000.00)")
                for n in range(6, 1, -1)
            ],
        ),
        (
            [row("copy", 1.0, None), row("fill", 4.0, None), row("add", 2.0, None), row("mul", 3.0, None),
             row("gelu", None, 0.5), row("silu", None, 1.5), row("softmax", 0.0, None)],
            [("unknown_kernels", 8.0, "kernels that the prediction does not contain take 10,000.0 ms a step "
              "(fill (forward) 4,000.0 ms, mul (forward) 3,000.0 ms, add (forward) 2,000.0 ms); what it contains and "
              "the trace does not show is 2,000.0 ms (silu, gelu: perhaps not fused)")],
        ),
        (  # What is missing is named from a hundredth of the predicted time on, here a second.
            [*(row(f"copy {n}", 1.0, None) for n in range(6)), row("layer_norm", 99.0, 98.5), row("gelu", None, 1.5)],
            [("unknown_kernels", 4.5, "kernels that the prediction does not contain take 6,000.0 ms a step "
              "(copy 0 (forward) 1,000.0 ms, copy 1 (forward) 1,000.0 ms, copy 2 (forward) 1,000.0 ms); what it "
              "contains and the trace does not show is 1,500.0 ms (gelu: perhaps not fused)")],
        ),
        (
            [*(row(f"copy {n}", 1.0, None) for n in range(60)), row("layer_norm", 99.0, 99.0), row("gelu", None, 1.02)],
            [("unknown_kernels", 58.98, "kernels that the prediction does not contain take 60,000.0 ms a step "
              "(copy 0 (forward) 1,000.0 ms, copy 1 (forward) 1,000.0 ms, copy 2 (forward) 1,000.0 ms); what it "
              "contains and the trace does not show is 1,020.0 ms (gelu: perhaps not fused)")],
        ),
    ],
)  # fmt: skip
def test_causes_in_operators(
    ran: Ran, estimate: Estimate, rows: list[Row], expected: list[tuple[str, float, str]]
) -> None:
    found = find_causes(ran(), estimate, rows, ())
    assert [(one.kind, pytest.approx(one.excess_s), one.line) for one in found] == expected


@pytest.mark.parametrize(
    ("collective", "expected"),
    [
        (
            row("all_reduce", 4.0, 1.0, by_rank_s={0: 5.0, 1: 3.0, 2: 4.0}, calls=1, launches=3.0,
                measured_bytes=4 << 20, predicted_bytes=1 << 20),
            [
                ("all_reduce", 3.0, "exposed all_reduce: 3 calls with 4.0 MiB a step, predicted are 1 with 1.0 MiB"),
                ("waiting", 2.0, "rank 0 waits 2,000.0 ms a step in all_reduce for a later rank"),
            ],
        ),
        (
            row("all_gather", 5.0, 1.0, calls=1, launches=3.0, measured_bytes=4 << 20, predicted_bytes=3 << 20),
            [("all_gather", 4.0, "exposed all_gather: 3 calls with 4.0 MiB a step, predicted are 1 with 3.0 MiB")],
        ),
        (
            row("all_gather", 3.0, 1.0, by_rank_s={1: 2.5}, measured_bytes=1.05, predicted_bytes=1),
            [("all_gather", 1.5, "exposed all_gather: 2,500.0 ms a step on the rank that waits least, predicted are "
              "1,000.0 ms (above its interval): less is hidden, or the network is slower")],
        ),
        (row("all_gather", 2.0, 1.0), []),
        (row("all_gather", None, 1.0), []),
        (
            row("broadcast", 0.5, None),
            [("broadcast", 0.5, "exposed broadcast: 500.0 ms a step on the rank that waits least, predicted are "
              "0.0 ms (above its interval): less is hidden, or the network is slower")],
        ),
    ],
)  # fmt: skip
def test_causes_in_collectives(
    ran: Ran, estimate: Estimate, collective: Row, expected: list[tuple[str, float, str]]
) -> None:
    found = find_causes(ran(), estimate, (), (collective,))
    assert [(one.kind, pytest.approx(one.excess_s), one.line) for one in found] == expected


def test_a_workload_is_matched_by_its_size_within_one_operator(ran: Ran, estimate: Estimate) -> None:
    """A loss over [1, b · l, v] with the vocabulary as it is, not padded, is the predicted loss."""

    def seen(work: Work) -> Work:
        return replace(work, vector=(1, 64, 250)) if work.operator == "cross_entropy" else work

    assert causes(ran(seen), estimate) == ()
