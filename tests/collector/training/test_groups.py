"""Who works together in a layout."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.collector.training.groups import KINDS, Part, members, place
from kernelcast.runtime import Parallelism

TWICE = Parallelism(pp=2, tp=2, dp=2, cp=2, ep=4, micro_batch=1, micro_batches=2, zero=1)


def test_ranks_count_tensor_then_context_then_data_then_stages() -> None:
    assert [place(TWICE, rank) for rank in range(16)] == list(product(range(2), repeat=4))


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        ("tensor", (12, 13)),
        ("context", (13, 15)),
        ("data", (9, 11, 13, 15)),
        ("pipeline", (5, 13)),
        ("experts", (12, 13, 14, 15)),
        ("expert_data", (9, 13)),
    ],
)
def test_groups_of_the_thirteenth_rank(kind: str, ranks: tuple[int, ...]) -> None:
    assert members(TWICE, 13, kind) == ranks


@given(st.tuples(*[st.sampled_from([1, 2, 3])] * 4), st.sampled_from(KINDS), st.data())
def test_groups_of_a_kind_part_the_ranks(degrees: tuple[int, ...], kind: str, data: st.DataObject) -> None:
    pp, tp, dp, cp = degrees
    ep = data.draw(st.sampled_from([one for one in (1, 2, 3) if dp * cp * tp % one == 0]))
    layout = Parallelism(pp=pp, tp=tp, dp=dp, cp=cp, ep=ep, micro_batch=1, micro_batches=2)
    size = {"tensor": tp, "context": cp, "data": dp * cp, "pipeline": pp, "experts": ep}
    size["expert_data"] = dp * cp * tp // ep
    groups = {members(layout, rank, kind) for rank in range(layout.world_size)}
    assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
    assert {len(group) for group in groups} == {size[kind]}


def test_parts_are_equal_and_in_order() -> None:
    assert [Part(index=index, parts=3).of(12) for index in range(3)] == [
        slice(0, 4),
        slice(4, 8),
        slice(8, 12),
    ]
    assert Part().of(5) == slice(0, 5)
