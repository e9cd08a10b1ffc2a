"""Which collectives of a layer overlap which of its products, by hand."""

from typing import Any

import pytest

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.op import Overlap
from kernelcast.runtime.step.parameters import held_parameters
from kernelcast.runtime.step.passes import Pass, Passes
from kernelcast.runtime.step.sizes import Sizes
from tests.runtime.step.layers.conftest import changed, collectives

GATHER, SCATTER = "all_gather/tensor", "reduce_scatter/tensor"
INPUT, WEIGHT = Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT


def passes(s: Sizes, overlap: str, is_parallel: bool = False, **fields: Any) -> Passes:
    """With a parallel residual both halves share a sum in either pass."""
    syncs = 1 if is_parallel else 2
    of_model = {"parallel_residual": is_parallel, "forward_syncs": syncs, "backward_syncs": syncs} | fields
    return Passes(transformer_layer(changed(s, tensor_overlap=overlap, **of_model)))


def overlapped(one: Pass) -> dict[Overlap, list[tuple[str, int]]]:
    """Collectives with their counts by what they overlap, which are the products of those names."""
    for overlap, pair in one.overlapped.items():
        assert tuple(call.role for call in pair.compute) == overlap.ops
        assert {call.direction for call in pair.compute} == {overlap.direction}
    return {
        overlap: [(name, count) for name, _, count in collectives(pair.collectives)]
        for overlap, pair in one.overlapped.items()
    }


def exposed(one: Pass) -> list[tuple[str, int]]:
    return [(name, count) for name, _, count in collectives(one.calls)]


@pytest.mark.parametrize("is_parallel", [False, True])
def test_a_forward_pass_in_pieces(llama_cut: Sizes, is_parallel: bool) -> None:
    # With a parallel residual both halves read the same gathered input, and their outputs are summed as one, while the
    # last product runs.
    columns = [("qkv", "mlp_gate_up")] if is_parallel else [("qkv",), ("mlp_gate_up",)]
    rows = [("mlp_down",)] if is_parallel else [("attention_output",), ("mlp_down",)]
    found = passes(llama_cut, "products", is_parallel).forward
    assert overlapped(found) == {
        Overlap(names, in_pieces=True): [(operator, 1)]
        for operator, products in ((GATHER, columns), (SCATTER, rows))
        for names in products
    }
    assert exposed(found) == []
    whole, halves = passes(llama_cut, "none", is_parallel).forward, len(columns)
    assert exposed(whole) == [(GATHER, halves), (SCATTER, halves)]
    assert overlapped(whole) == {}


@pytest.mark.parametrize("is_parallel", [False, True])
def test_a_backward_pass(llama_cut: Sizes, is_parallel: bool) -> None:
    columns = [("qkv", "mlp_gate_up")] if is_parallel else [("qkv",), ("mlp_gate_up",)]
    rows = [("mlp_down",)] if is_parallel else [("attention_output",), ("mlp_down",)]
    halves = len(columns)
    # Inputs are gathered again in any case.
    gathered = {Overlap(names, INPUT): [(GATHER, 1)] for names in columns}
    summed = {Overlap(names, WEIGHT): [(SCATTER, 1)] for names in columns}
    of_outputs = {Overlap(names, INPUT, in_pieces=True): [(GATHER, 1)] for names in rows}
    for overlap, expected, alone in (
        ("none", gathered, [(GATHER, halves), (SCATTER, halves)]),
        ("weight_gradients", gathered | summed, [(GATHER, halves)]),
        ("products", gathered | summed | of_outputs, []),
    ):
        found = passes(llama_cut, overlap, is_parallel).backward
        assert (overlapped(found), exposed(found)) == (expected, alone)
        assert [one.of_weights for one in found.overlapped].count(True) == (
            0 if overlap == "none" else halves
        )


def test_without_a_cut_sequence_only_sums_overlap_weight_gradients(llama: Sizes) -> None:
    found = passes(llama, "products")
    assert exposed(found.forward) == [("all_reduce/tensor", 2)]
    assert overlapped(found.forward) == {}
    assert overlapped(found.backward) == {
        Overlap((name,), WEIGHT): [("all_reduce/tensor", 1)] for name in ("qkv", "mlp_gate_up")
    }
    assert exposed(found.backward) == []


def test_one_sum_of_gradients_for_both_halves_of_a_layer(llama_cut: Sizes) -> None:
    found = passes(llama_cut, "products", backward_syncs=1).backward.overlapped
    assert sum(one.in_pieces for one in found) == sum(one.of_weights for one in found) == 1


def test_norms_before_and_after(llama: Sizes) -> None:
    usual, more = (transformer_layer(changed(llama, post_norms=one)) for one in (False, True))
    assert [sum(one.name.endswith("_norm") for one in ops) for ops in (usual, more)] == [2, 4]
    assert held_parameters(llama, more).total - held_parameters(llama, usual).total == 2 * 32
