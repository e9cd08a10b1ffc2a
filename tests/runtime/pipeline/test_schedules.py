"""Orders of passes: complete, as published, and with no more under way than their memory allows."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import UsageError
from kernelcast.runtime.pipeline.schedules import Kind, Pass, stage_orders


def shown(order: tuple[Pass, ...]) -> str:
    """As `F1 B1 W1`; passes of the second chunk of an interleaved stage have lower-case letters."""
    first = min(one.chunk for one in order)
    return " ".join(
        f"{one.kind.value[0].upper() if one.chunk == first else one.kind.value[0]}{one.micro_batch + 1}"
        for one in order
    )


def test_orders_by_hand() -> None:
    assert [shown(order) for order in stage_orders("gpipe", 2, 3)] == ["F1 F2 F3 B1 B2 B3"] * 2
    assert [shown(order) for order in stage_orders("1f1b", 3, 4)] == [
        "F1 F2 F3 B1 F4 B2 B3 B4",
        "F1 F2 B1 F3 B2 F4 B3 B4",
        "F1 B1 F2 B2 F3 B3 F4 B4",
    ]
    assert [shown(order) for order in stage_orders("zero_bubble", 3, 4)] == [
        "F1 F2 F3 B1 W1 F4 B2 W2 B3 W3 B4 W4",
        "F1 F2 B1 F3 B2 W1 F4 B3 W2 B4 W3 W4",
        "F1 B1 F2 B2 F3 B3 W1 F4 B4 W2 W3 W4",
    ]


def test_interleaved_by_hand() -> None:
    # arXiv 2104.04473, figure 4 (4 devices, 8 micro-batches, 2 chunks each): first and last device.
    first, *_, last = stage_orders("interleaved", 4, 8, 2)
    assert shown(first).startswith("F1 F2 F3 F4 f1 f2 f3 f4 F5 F6 F7 b1 F8 b2 f5 b3 f6 b4 f7 B1 f8 B2")
    assert shown(last).startswith("F1 F2 F3 F4 f1 b1 f2 b2 f3 b3 f4 b4 F5 B1 F6 B2 F7 B3 F8 B4 f5 b5")


@given(
    st.sampled_from(("gpipe", "1f1b", "zero_bubble", "interleaved")), st.integers(1, 9), st.integers(1, 30)
)
def test_every_stage_runs_every_pass_once_and_in_time(schedule: str, pp: int, micro_batches: int) -> None:
    virtual_stages = 1
    if schedule == "interleaved":
        pp, virtual_stages = max(2, pp), 1 + micro_batches % 4
        micro_batches *= pp
    elif schedule == "zero_bubble":
        pp = max(2, pp)
    kinds = list(Kind) if schedule == "zero_bubble" else [Kind.FORWARD, Kind.BACKWARD]
    for stage, order in enumerate(stage_orders(schedule, pp, micro_batches, virtual_stages)):  # type: ignore[arg-type]
        expected = {
            Pass(kind, stage + pp * turn, index)
            for kind in kinds
            for turn in range(virtual_stages)
            for index in range(micro_batches)
        }
        assert set(order) == expected
        assert len(order) == len(expected)
        position = {one: index for index, one in enumerate(order)}
        for one in order:
            if one.kind is Kind.BACKWARD:
                assert position[one] > position[one._replace(kind=Kind.FORWARD)]
            if one.kind is Kind.WEIGHT:
                assert position[one] > position[one._replace(kind=Kind.BACKWARD)]


@given(st.integers(1, 9), st.integers(1, 30), st.integers(1, 4))
def test_activations_that_a_stage_keeps(pp: int, micro_batches: int, virtual_stages: int) -> None:
    def most(order: tuple[Pass, ...], *, freed_by: Kind) -> int:
        steps = ((one.kind is Kind.FORWARD) - (one.kind is freed_by) for one in order)
        return max(accumulate(steps))

    for order in stage_orders("gpipe", pp, micro_batches):
        assert most(order, freed_by=Kind.BACKWARD) == micro_batches
    for stage, order in enumerate(stage_orders("1f1b", pp, micro_batches)):
        assert most(order, freed_by=Kind.BACKWARD) == min(pp - stage, micro_batches)
    # ZB-H1 keeps on every stage what 1F1B keeps on the first.
    if pp > 1:
        for order in stage_orders("zero_bubble", pp, micro_batches):
            assert most(order, freed_by=Kind.WEIGHT) == min(pp, micro_batches)
        for stage, order in enumerate(stage_orders("interleaved", pp, pp * micro_batches, virtual_stages)):
            under_way = 2 * (pp - 1 - stage) + (virtual_stages - 1) * pp + 1
            assert most(order, freed_by=Kind.BACKWARD) == min(under_way, pp * micro_batches * virtual_stages)


@pytest.mark.parametrize(("schedule", "pp", "micro_batches"), [("interleaved", 2, 3), ("1f1b", 0, 1)])
def test_impossible_orders_are_refused(schedule: str, pp: int, micro_batches: int) -> None:
    with pytest.raises(UsageError, match=r"^(micro_batches|pp) is \d, expected"):
        stage_orders(schedule, pp, micro_batches)  # type: ignore[arg-type]
