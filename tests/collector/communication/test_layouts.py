"""Groups of processes, by shape and as parallelism of a degree forms them."""

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kernelcast.collector.communication.layouts import Layout, layouts
from kernelcast.collector.communication.world import World
from kernelcast.runtime import Cluster, Parallelism, UsageError
from kernelcast.runtime.step.groups import data_group, pipeline_pair, tensor_group


def world(nodes: int, per_node: int) -> World:
    return World(rank=0, local_rank=0, size=nodes * per_node, local_size=per_node)


def groups(text: str, of: World) -> tuple[tuple[int, ...], ...]:
    (found,) = layouts(text, of)
    return found.groups


def test_two_nodes_of_four() -> None:
    two = world(2, 4)
    # Neighbours within a node, every s-th process over several.
    assert groups("1x2", two) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert groups("1x4", two) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert groups("2x1", two) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert groups("2x2", two) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert groups("2x4", two) == (tuple(range(8)),)
    for named, shape in {
        "tp2": "1x2", "mp2": "1x2", "tp8": "2x4", "mp8": "2x4",
        "dp4": "2x2", "dp2": "2x1", "pp2": "2x1", "pp4": "1x2",
    }.items():  # fmt: skip
        assert layouts(named, two) == layouts(shape, two)
    assert [layouts(text, two)[0].groups_per_node for text in ("1x2", "2x1", "2x2", "2x4")] == [2, 4, 2, 1]


def test_by_default_all_in_powers_of_two_without_duplicates() -> None:
    def shapes(nodes: int, per_node: int) -> list[tuple[int, int]]:
        return [(x.nodes, x.per_node) for x in layouts("", world(nodes, per_node))]

    assert shapes(1, 2) == [(1, 2)]
    assert shapes(1, 3) == [(1, 2), (1, 3)]
    assert shapes(2, 1) == [(2, 1)]
    assert shapes(2, 4) == [(1, 2), (2, 1), (1, 4), (2, 2), (2, 4)]
    assert len(layouts("1x2,mp2,tp2,dp2,1x2", world(1, 2))) == 1


@given(st.integers(1, 4), st.integers(1, 9))
def test_every_layout_is_what_it_says(nodes: int, per_node: int) -> None:
    assume(nodes * per_node > 1)
    for layout in layouts("", world(nodes, per_node)):
        members = [rank for group in layout.groups for rank in group]
        assert len(members) == len(set(members))  # all run at once
        assert set(members) <= set(range(nodes * per_node))
        for group in layout.groups:
            assert len(group) == layout.size == layout.nodes * layout.per_node
            assert list(group) == sorted(group)
            on = [rank // per_node for rank in group]
            assert {on.count(node) for node in on} == {layout.per_node}
            if layout.nodes == 1:
                assert all(b - a == 1 for a, b in pairwise(group))
        assert layout.groups_per_node == max(
            sum(any(rank // per_node == node for rank in group) for group in layout.groups)
            for node in range(nodes)
        )


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]), st.data())
def test_degrees_give_the_vectors_that_predictions_ask_for(
    nodes: int, per_node: int, data: st.DataObject
) -> None:
    size = nodes * per_node
    assume(size > 1)
    degrees = [2**n for n in range(1, size.bit_length()) if 2**n <= size]
    degree = data.draw(st.sampled_from(degrees))
    cluster = Cluster(gpus_per_node=per_node)

    def shape(layout: Layout) -> tuple[int, int]:
        return layout.nodes, layout.per_node

    def asked(**degrees: int) -> Parallelism:
        return Parallelism(**{"pp": 1, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 8} | degrees)

    here = world(nodes, per_node)
    tp = tensor_group(asked(tp=degree, dp=size // degree), cluster)
    for name in ("tp", "mp"):
        assert [shape(x) for x in layouts(f"{name}{degree}", here)] == [(tp.nodes, tp.gpus_per_node)]
    dp = data_group(asked(dp=degree, tp=size // degree), cluster)
    assert [shape(x) for x in layouts(f"dp{degree}", here)] == [(dp.nodes, dp.gpus_per_node)]
    pair = pipeline_pair(asked(pp=2, tp=size // 2), cluster)
    assert [shape(x) for x in layouts("pp2", here)] == [(pair.nodes, pair.gpus_per_node)]


@pytest.mark.parametrize("text", ["2", "x", "1x", "tp", "ep2", "1x2;2x1", "1x2,", "-1x2", "1×2", "9999999x1"])
def test_what_is_no_layout(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--layouts: found .*expected NODESxPROCESSES or tp, dp or pp"):
        layouts(text, world(2, 4))


@pytest.mark.parametrize("text", ["1x1", "0x2", "3x1", "1x5", "mp1", "mp6", "mp16", "dp3", "pp3", "dp0"])
def test_what_these_processes_cannot_form(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        layouts(f"1x2,{text}", world(2, 4))
    assert str(caught.value) == (
        f"--layouts: {text} cannot be formed, found 2 node(s) with 4 process(es) each; "
        "expected groups of 2 to 8 processes that fit them"
    )


def test_a_degree_that_divides_no_node() -> None:
    with pytest.raises(
        UsageError, match=r"^--layouts: dp5 cannot be formed, found 2 node\(s\) with 5 process"
    ):
        layouts("dp5", world(2, 5))
