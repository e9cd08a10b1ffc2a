"""The space of layouts: every valid one once, within limits, however it is cut into shards."""

from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.runtime import ModelConfig, Parallelism, UsageError
from kernelcast.runtime.request.field_types import NumberSet
from kernelcast.runtime.request.fields import Recompute, Schedule
from kernelcast.runtime.search.refusals import Refusals
from kernelcast.runtime.search.space import Space, divisors
from kernelcast.runtime.step.chunks import partition
from kernelcast.runtime.step.layouts import SCHEDULES

SMALL: dict[str, Any] = {
    "name": "small",
    "hidden_size": 48,
    "sequence_length": 12,
    "attention_heads": 12,
    "kv_heads": 6,
    "layers": 7,
    "vocabulary_size": 100,
}


def brute_force(space: Space, largest: int) -> set[Parallelism]:
    """Everything up to `largest` in every field, as far as `Parallelism`, `check` and `partition` accept it."""
    found = set()
    numbers = range(1, largest + 1)
    samples = [(b, m) for b, m in product(numbers, numbers) if space.global_batch % (b * m) == 0]
    for (b, m), pp, tp in product(samples, numbers, numbers):
        for gpus, dp in product(space.gpus, (space.global_batch // (b * m),)):
            if pp * tp * dp != gpus:
                continue
            for schedule, virtual_stages, zero, recompute, sequence in product(
                get_args(Schedule), numbers, range(4), get_args(Recompute), (False, True)
            ):
                try:
                    layout = Parallelism(
                        pp=pp,
                        tp=tp,
                        dp=dp,
                        micro_batch=b,
                        micro_batches=m,
                        schedule=schedule,
                        virtual_stages=virtual_stages,
                        zero=zero,
                        recompute=recompute,
                        sequence_parallel=sequence,
                    )
                    layout.check(space.model)
                    partition(space.model.layers, pp, layout.virtual_stages)
                except UsageError:
                    continue
                found.add(layout)
    return found


def makes_a_difference(layout: Parallelism) -> bool:
    """Not the same as another layout: see `Space`."""
    return (
        (layout.dp > 1 or layout.zero == 0)
        and (layout.tp > 1 or not layout.sequence_parallel)
        and (layout.pp > 1 or layout.schedule == "1f1b")
        and (layout.micro_batches > 1 or layout.schedule != "gpipe")
    )


@settings(deadline=None, max_examples=12)
@given(gpus=st.integers(1, 12), global_batch=st.integers(1, 12), layers=st.integers(1, 9))
def test_it_is_what_parallelism_check_and_partition_accept(gpus: int, global_batch: int, layers: int) -> None:
    space = Space(
        model=ModelConfig(**SMALL | {"layers": layers}),
        gpus=(gpus,),
        global_batch=global_batch,
        gpus_per_node=3,
        tp=range(1, 100),
        virtual_stages=range(1, 100),
        schedules=SCHEDULES,
    )
    layouts = list(space.layouts())
    assert len(set(layouts)) == len(layouts)
    assert set(layouts) == {one for one in brute_force(space, 12) if makes_a_difference(one)}


MIXTURE: dict[str, Any] = SMALL | {
    "sequence_length": 48,
    "kv_heads": 12,
    "experts": 6,
    "experts_per_token": 2,
    "expert_size": 24,
}
DEGREES = ("pp", "tp", "dp", "cp", "ep", "expert_tp")


def degrees_of(layout: Parallelism) -> tuple[int, ...]:
    return tuple(getattr(layout, name) for name in DEGREES)


@pytest.mark.parametrize("experts", [0, 6])
@pytest.mark.parametrize("gpus", [1, 6, 8])
def test_degrees_of_context_and_experts(gpus: int, experts: int) -> None:
    """Each device routes its own tokens to the experts, so that tensor parallelism needs cut sequences."""
    model = ModelConfig(**MIXTURE if experts else SMALL | {"sequence_length": 48, "kv_heads": 12})
    numbers = range(1, 9)
    space = Space(
        model=model, gpus=(gpus,), global_batch=24, gpus_per_node=8, cp=numbers, expert_tp=numbers,
        schedules=("1f1b",), recompute=("none",), zero=(0,), micro_batch=(1,),
    )  # fmt: skip
    expected = set()
    for pp, tp, dp, cp, ep, expert_tp in product(numbers, repeat=len(DEGREES)):
        if pp * tp * dp * cp != gpus or 24 % dp:
            continue
        try:
            layout = Parallelism(
                pp=pp, tp=tp, dp=dp, cp=cp, ep=ep, expert_tp=expert_tp, micro_batch=1, micro_batches=24 // dp,
                sequence_parallel=tp > 1,
            )  # fmt: skip
            layout.check(model)
            partition(model.layers, pp)
        except UsageError:
            continue
        expected.add(degrees_of(layout))
    found = list(space.layouts())
    assert {degrees_of(one) for one in found} == expected
    assert len(expected) >= gpus
    cut = [one for one in found if one.tp > 1]
    assert {one.sequence_parallel for one in cut} == (
        ({True} if experts else {True, False}) if cut else set()
    )


def test_usual_and_asked_degrees_of_context_and_experts() -> None:
    long = ModelConfig(**MIXTURE | {"sequence_length": 4 * 4096})
    values: dict[str, Any] = {"model": long, "gpus": (16,), "global_batch": 16, "gpus_per_node": 8}
    usual = list(Space(**values).layouts())
    assert {one.cp for one in usual} == {1, 2, 4}  # 4,096 tokens on a device or more
    assert {one.ep for one in usual} == {1, 2}  # divisors of 16 devices and of 6 experts
    assert all(one.expert_tp in (1, one.tp) for one in usual)
    for name, allowed in (("cp", {8}), ("ep", {2}), ("expert_tp", {4}), ("ep", NumberSet.parse("2-"))):
        found = list(Space(**values, **{name: allowed}).layouts())
        assert found
        assert all(getattr(one, name) in allowed for one in found)
    assert any(one.tp != one.expert_tp for one in Space(**values, expert_tp=(4,)).layouts())


def test_refusals_of_context_and_experts_are_counted() -> None:
    model, refusals = ModelConfig(**MIXTURE | {"sequence_length": 36, "expert_size": 25}), Refusals()
    space = Space(
        model=model, gpus=(8,), global_batch=8, gpus_per_node=8, cp=(1, 4), tp=(1, 2), expert_tp=(1, 2)
    )
    list(space.blocks(refusals=refusals))
    assert refusals.by_field["cp"].example == (
        "2 · cp is 8, expected a divisor of sequence_length (36) of model small"
    )
    assert refusals.by_field["expert_tp"].example == (
        "expert_tp is 2, expected a divisor of expert_width (25) of model small"
    )


def small(**fields: Any) -> Space:
    values = {"gpus": (8,), "global_batch": 16, "gpus_per_node": 4} | fields
    return Space(model=ModelConfig(**SMALL), **values)


def test_limits() -> None:
    everything = set(small().layouts())
    assert {layout.tp for layout in everything} == {1, 2}  # 6 key-value heads; 4 divides the node, not them
    for name, allowed in (
        ("pp", {1, 4}),
        ("tp", {2}),
        ("dp", {2, 8}),
        ("micro_batch", {1, 2}),
        ("micro_batches", {4, 8}),
    ):
        limited = set(small(**{name: allowed}).layouts())
        assert limited == {layout for layout in everything if getattr(layout, name) in allowed}
    only = small(schedules=("gpipe",), recompute=("full",), zero=(2,), sequence_parallel=(True,), pp=(2,))
    assert {(one.schedule, one.recompute, one.zero, one.sequence_parallel) for one in only.layouts()} == {
        ("gpipe", "full", 2, True)
    }


def test_tensor_parallelism_stays_within_a_node_unless_asked() -> None:
    model = ModelConfig(**SMALL | {"kv_heads": 12})
    values: dict[str, Any] = {"model": model, "gpus": (12,), "global_batch": 12, "gpus_per_node": 4}
    assert {one.tp for one in Space(**values).layouts()} == {1, 2, 3, 4}
    assert {one.tp for one in Space(**values, tp=NumberSet.parse("6-")).layouts()} == {6, 12}


def test_virtual_stages_have_usual_ones_and_all_that_are_asked() -> None:
    model = ModelConfig(**SMALL | {"layers": 30})
    values: dict[str, Any] = {"model": model, "gpus": (2,), "global_batch": 4, "gpus_per_node": 4, "pp": (2,)}
    usual = {one.virtual_stages for one in Space(**values).layouts()}
    assert usual == {1, *range(2, 9)}
    asked = {one.virtual_stages for one in Space(**values, virtual_stages=NumberSet.parse("12-")).layouts()}
    assert asked == {1, 12, 13, 14, 15}


def test_v_shaped_schedules_are_asked_for() -> None:
    values: dict[str, Any] = {
        "model": ModelConfig(**SMALL),
        "gpus": (2,),
        "global_batch": 4,
        "gpus_per_node": 4,
    }
    usual = {one.schedule for one in Space(**values).layouts()}
    assert usual == {"gpipe", "1f1b", "interleaved", "zero_bubble"}
    asked = {
        (one.schedule, one.virtual_stages) for one in Space(**values, pp=(2,), schedules=SCHEDULES).layouts()
    }
    assert asked >= {("zb_v", 2), ("dualpipe", 1), ("dualpipe_v", 2)}


def test_several_sizes() -> None:
    both = list(small(gpus=(4, 8)).layouts())
    assert both == [*small(gpus=(4,)).layouts(), *small(gpus=(8,)).layouts()]


@pytest.mark.parametrize("shards", [1, 2, 5, 1000])
def test_shards_together_are_the_space(shards: int) -> None:
    space = small()
    whole, refusals = Refusals(), Refusals()
    expected = [block.table.tolist() for block, _ in space.blocks(refusals=whole)]
    rows = []
    for shard in range(shards):
        for block, _ in space.blocks(shard=shard, shards=shards, refusals=refusals):
            rows += block.table.tolist()
    assert sorted(rows) == sorted(row for table in expected for row in table)
    assert {name: one.count for name, one in refusals.by_field.items()} == {
        name: one.count for name, one in whole.by_field.items()
    }


def test_refusals_are_counted_by_field() -> None:
    refusals = Refusals()
    list(small(global_batch=6).blocks(refusals=refusals))
    assert refusals.by_field["tp"].example == ("tp is 4, expected a divisor of kv_heads (6) of model small")
    assert refusals.by_field["global_batch"].example == "global_batch is 6, expected a multiple of dp (8)"
    assert refusals.by_field["micro_batches"].count > 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gpus": ()}, "gpus is (), expected one or more different values"),
        ({"gpus": (0,)}, "gpus is 0, expected a whole number from 1 to 2147483647"),
        ({"gpus": (8, 8)}, "gpus is (8, 8), expected one or more different values"),
        ({"global_batch": 0}, "global_batch is 0, expected a whole number from 1 to 2147483647"),
        ({"gpus_per_node": -1}, "gpus_per_node is -1, expected a whole number from 1 to 1000000"),
        (
            {"schedules": ("2f2b",)},
            "schedules is '2f2b', expected gpipe, 1f1b, interleaved, zero_bubble, "
            "zb_v, dualpipe or dualpipe_v",
        ),
        ({"recompute": ("some",)}, "recompute is 'some', expected none, selective or full"),
        ({"zero": (4,)}, "zero is 4, expected a whole number from 0 to 3"),
        ({"zero": (1,) * 90}, f"zero is {str((1,) * 90)[:80]}, expected one or more different values"),
        ({"common": {"dropout": None}}, "dropout is null, expected a number from 0 to 1"),
    ],
)
def test_nonsense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        small(**fields)
    assert str(caught.value) == message


PAIR: dict[str, Any] = {"gpus": (4,), "global_batch": 2, "recompute": ("none",), "zero": (0,)}
"""Two samples on four devices; tp = 4 does not divide 6 key-value heads, and dp = 4 not the samples."""


def test_units_by_hand() -> None:
    # pp, tp, dp, cp, ep, expert_tp, samples of a micro-batch, micro-batches: of every pp the most micro-batches first.
    one = (1, 1, 1)
    assert list(small(**PAIR).units()) == [
        (1, 2, 2, *one, 1, 1),
        (2, 2, 1, *one, 1, 2),
        (2, 1, 2, *one, 1, 1),
        (2, 2, 1, *one, 2, 1),
        (4, 1, 1, *one, 1, 2),
        (4, 1, 1, *one, 2, 1),
    ]


def test_layouts_and_refusals_are_counted_by_hand() -> None:
    refusals = Refusals()
    [(layouts, units)] = small(**PAIR).blocks(refusals=refusals)
    assert units == 6
    # tp = 2 is with and without cut sequences. One micro-batch: 1f1b, on several stages zero-bubble too; two on two
    # stages: gpipe, 1f1b, zero-bubble, and 2 or 3 chunks per stage; two on four stages: no chunks.
    assert len(layouts) == 2 * 1 + 2 * (3 + 2) + 2 + 2 * 2 + 3 + 2
    rising = layouts["index"].tolist()
    assert rising == sorted(set(rising))
    # Of 7 layers no 8 chunks: once for every unit of a pipeline. Chunks need as many micro-batches as stages: 2 and 3
    # of them are refused once with one micro-batch and tp = 1, twice with tp = 2.
    assert {name: one.count for name, one in refusals.by_field.items()} == {
        "global_batch": 1,
        "tp": 1,
        "pp": 5,
        "micro_batches": 2 + 2 * 2,
    }
    v_shaped = Refusals()
    [(none, _)] = small(**PAIR, pp=(4,), schedules=("zb_v",)).blocks(refusals=v_shaped)
    assert (len(none), v_shaped.by_field["pp"].count) == (0, 2)


def test_refusals_add_up() -> None:
    one, other = Refusals(), Refusals()
    for refusals, field, message in (
        (one, "tp", "tp is 3"),
        (one, "tp", "2 · tp is 6"),
        (other, "tp", "tp is 5"),
        (other, "", "2 · 3"),
    ):
        refusals.add(UsageError(message, field=field))
    one.merge(other)
    assert {name: (found.count, found.example) for name, found in one.by_field.items()} == {
        "tp": (3, "tp is 3"),
        "": (1, "2 · 3"),
    }


def test_what_takes_too_long_to_simulate_is_refused() -> None:
    """A million passes at most; the same degrees with fewer micro-batches are not."""
    long: dict[str, Any] = {
        "gpus": (2,),
        "pp": (2,),
        "global_batch": 1_000_000,
        "micro_batches": (250_000, 500_000, 1_000_000),
        "virtual_stages": (2,),
        "schedules": ("1f1b", "interleaved"),
        "recompute": ("none",),
    }
    space = small(**long)

    def found(simulated: bool) -> set[tuple[int, int]]:
        return {
            (block.parallelism(row).virtual_stages, block.parallelism(row).micro_batches)
            for block, _ in space.blocks(simulated=simulated)
            for row in range(len(block))
        }

    assert found(True) == {(1, 250_000), (1, 500_000), (2, 250_000)}
    assert found(False) == {(chunks, m) for chunks in (1, 2) for m in (250_000, 500_000, 1_000_000)}


@pytest.mark.parametrize("devices", [1, 2])
def test_a_schedule_that_is_asked_alone_is_kept(devices: int) -> None:
    # Elsewhere 1f1b stands for gpipe on one stage, and with one micro-batch.
    asked = small(gpus=(devices,), global_batch=1, schedules=("gpipe",))
    assert {one.schedule for one in asked.layouts()} == {"gpipe"}


@given(st.integers(1, 5000))
def test_divisors(number: int) -> None:
    assert divisors(number) == [n for n in range(1, number + 1) if number % n == 0]


def test_number_sets() -> None:
    allowed = NumberSet.parse("1, 4-6,10-")
    assert [n for n in range(13) if n in allowed] == [1, 4, 5, 6, 10, 11, 12]
    assert str(allowed) == "1,4-6,10-"
    assert "4" not in allowed
    for text in ("", "x", "1,,2", "5-4", "-3", "1.5"):
        with pytest.raises(UsageError, match=r"^tp is '.*', expected .* \S+$"):
            NumberSet.parse(text, name="tp")


def test_more_micro_batches_than_a_field_allows_are_refused_and_counted() -> None:
    refusals = Refusals()
    space = Space(model=ModelConfig(**SMALL), gpus=(4,), global_batch=1 << 23, gpus_per_node=8)
    assert sum(len(block) for block, _ in space.blocks(refusals=refusals)) > 0
    assert refusals.by_field["micro_batches"].example.startswith("micro_batches is 4194304, expected")
