"""Which collectives of a layer run beside which of its products, by hand."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from kernelcast.runtime.step.calls import Beside, Calls
from kernelcast.runtime.step.layers.sizes import Sizes
from kernelcast.runtime.step.layers.transformer_layer import TransformerLayer
from tests.runtime.step.layers.conftest import LLAMA

Pair = tuple[list[str], list[str]]
UP, DOWN, GATHER, SCATTER = ["qkv"], ["attention_output"], ["all_gather"], ["reduce_scatter"]
NONE: Pair = ([], [])


def layer(llama_cut: Sizes, overlap: Any, is_parallel: bool) -> TransformerLayer:
    """With a parallel residual both halves share a sum in either pass."""
    syncs = 1 if is_parallel else 2
    model = replace(llama_cut.model, parallel_residual=is_parallel, forward_syncs=syncs, backward_syncs=syncs)
    sizes = replace(llama_cut, overlap=overlap, model=model)
    return TransformerLayer(sizes)


def pairs(found: Iterable[Beside]) -> list[Pair]:
    """The collective, and the roles of what computes beside it."""
    return [([one.operator for one in pair.collective], [one.role for one in pair.compute]) for pair in found]


def operators(calls: Calls) -> list[tuple[str, int]]:
    return [(one.operator, one.count) for one in calls if one.role == "tensor" and one.count]


@pytest.mark.parametrize("is_parallel", [False, True])
def test_a_forward_pass_in_pieces(llama_cut: Sizes, is_parallel: bool) -> None:
    found = layer(llama_cut, "products", is_parallel)
    own = [pair for pair in found.beside_forward if pair.in_pieces]
    if is_parallel:
        # Both halves read the same gathered input, and their outputs are summed as one, beside the last product.
        assert pairs(own) == [(GATHER, ["qkv", "mlp_gate_up"]), (SCATTER, ["mlp_down"]), NONE, NONE]
    else:
        assert pairs(own) == [
            (GATHER, ["qkv"]),
            (GATHER, ["mlp_gate_up"]),
            (SCATTER, ["attention_output"]),
            (SCATTER, ["mlp_down"]),
        ]
    # None is left by itself.
    assert operators(found.forward_collectives) == []
    whole = layer(llama_cut, "none", is_parallel)
    halves = 1 if is_parallel else 2
    assert operators(whole.forward_collectives) == [("all_gather", halves), ("reduce_scatter", halves)]
    assert not [pair for pair in whole.beside_forward if pair.in_pieces]


@pytest.mark.parametrize("is_parallel", [False, True])
def test_a_backward_pass(llama_cut: Sizes, is_parallel: bool) -> None:
    columns = [["qkv", "mlp_gate_up"]] if is_parallel else [["qkv"], ["mlp_gate_up"]]
    rows = [["mlp_down"]] if is_parallel else [["attention_output"], ["mlp_down"]]
    padding = [NONE] if is_parallel else []
    halves = len(columns)
    gathered = [(GATHER, roles) for roles in columns] + padding
    summed = [(SCATTER, roles) for roles in columns] + padding
    of_outputs = [(GATHER, roles) for roles in rows] + padding

    def backward(overlap: str) -> tuple[list[Pair], list[tuple[str, int]]]:
        found = layer(llama_cut, overlap, is_parallel)
        own = [pair for pair in found.beside_backward if pair not in found.attention.beside_backward]
        return pairs(own), operators(found.backward_collectives)

    # Inputs are gathered again in any case.
    assert backward("none") == (gathered, [("all_gather", halves), ("reduce_scatter", halves)])
    assert backward("weight_gradients") == (gathered + summed, [("all_gather", halves)])
    assert backward("products") == (gathered + summed + of_outputs, [])


def test_which_pairs_wait_for_weight_gradients(llama_cut: Sizes) -> None:
    found = layer(llama_cut, "products", False).beside_backward
    assert [pair.of_weights for pair in found if pair.collective] == [False] * 2 + [True] * 2 + [False] * 2
    assert [pair.in_pieces for pair in found if pair.collective] == [False] * 4 + [True] * 2


def test_without_a_cut_sequence_only_sums_run_beside_weight_gradients(llama: Sizes) -> None:
    found = TransformerLayer(replace(llama, overlap="products"))
    assert operators(found.forward_collectives) == [("all_reduce", 2)]
    assert not [pair for pair in found.beside_forward if pair.collective]
    assert [pair for pair in pairs(found.beside_backward) if pair != NONE] == [
        (["all_reduce"], ["qkv"]),
        (["all_reduce"], ["mlp_gate_up"]),
    ]
    assert operators(found.backward_collectives) == []


def test_one_sum_of_gradients_for_both_halves_of_a_layer(llama_cut: Sizes) -> None:
    found = TransformerLayer(replace(llama_cut, overlap="products", model=replace(LLAMA, backward_syncs=1)))
    assert [bool(pair.collective) for pair in found.beside_backward if pair.in_pieces] == [True, False]
    assert sum(bool(pair.collective) for pair in found.beside_backward if pair.of_weights) == 1


def test_norms_before_and_after(llama: Sizes) -> None:
    usual, more = (
        TransformerLayer(replace(llama, model=replace(LLAMA, post_norms=one))) for one in (False, True)
    )
    assert (usual.norms, more.norms) == (2, 4)
    assert more.parameters - usual.parameters == 2 * 32
