"""Dispatchers and the host's time of mixtures of experts."""

import math
from typing import Any

import pytest

from kernelcast.runtime import Cluster, Estimator, Parallelism, UsageError, load_model
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.step.decomposition import decompose
from kernelcast.runtime.step.op import Op

QWEN = load_model("qwen3-30b-a3b")
LAYOUT = {"pp": 1, "tp": 1, "dp": 16, "ep": 16, "micro_batch": 1, "micro_batches": 1}


def layer(model: str = "qwen3-30b-a3b", **fields: object) -> dict[str, Op]:
    layout = Parallelism(**{**LAYOUT, **fields})
    parts = decompose(
        model=load_model(model), parallelism=layout, cluster=Cluster(gpus_per_node=8), bucket_entries=10**9
    )
    return {one.name: one for one in parts.layers[0].ops}


def entries(one: Op) -> float:
    assert one.call is not None
    return one.call.shape[0]


def test_a_token_crosses_to_a_node_once() -> None:
    ops, tokens = layer(expert_dispatcher="deepep"), QWEN.sequence_length * QWEN.hidden_size
    # Of 8 of 128 experts, none is on one of two nodes in C(64, 8) of C(128, 8) cases.
    reached = 2 * (1 - math.comb(64, 8) / math.comb(128, 8))
    assert entries(ops["dispatch_between"]) == pytest.approx(tokens * reached, rel=1e-6)
    reached = 16 * (1 - math.comb(120, 8) / math.comb(128, 8))
    assert entries(ops["dispatch"]) == pytest.approx(tokens * reached, rel=1e-6)
    assert entries(layer()["dispatch"]) == 8 * tokens


def test_dispatchers_permute_what_came_in_once() -> None:
    counts = {
        dispatcher: sum(
            one.call.count
            for one in layer(expert_dispatcher=dispatcher).values()
            if one.call is not None and one.call.operator in ("permute", "unpermute", "copy")
        )
        for dispatcher in ("all_to_all", "deepep", "hybridep")
    }
    assert counts == {"all_to_all": 4, "deepep": 2, "hybridep": 2}
    # HybridEP launches them with the exchange, under another micro-batch.
    for dispatcher, beside in (("deepep", False), ("hybridep", True)):
        ops = layer(expert_dispatcher=dispatcher, expert_overlap=True)
        assert [ops[name].overlaps is not None for name in ("permute", "unpermute")] == [beside, beside]
        assert ops["dispatch"].overlaps is not None


def test_graphs_of_whole_passes_fuse_experts_in_mxfp8() -> None:
    fused, apart = (
        {name for name, one in layer(fp8_recipe=recipe, cuda_graphs="full").items() if one.call is None}
        for recipe in ("mxfp8", "blockwise")
    )
    assert fused - apart == {"experts_activation", "experts_down_input_cast", "experts_gate_up_gradient_cast"}
    # Biases have no such product, and Nemotron's experts no gate.
    for model in ("gpt-oss-120b", "nemotron-3-nano"):
        names = {
            graphs: [
                name
                for name, one in layer(model, fp8_recipe="mxfp8", cuda_graphs=graphs).items()
                if one.call is None
            ]
            for graphs in ("none", "full")
        }
        assert names["none"] == names["full"]


def test_an_exchange_beside_another_micro_batch_is_half_exposed() -> None:
    """Of m micro-batches one exchange of each pass has no partner."""
    estimator = Estimator.load("h100-sxm")

    def step_s(overlap: bool, share: float, micro_batches: int) -> float:
        layout = Parallelism(
            **{**LAYOUT, "dp": 8, "ep": 8, "micro_batch": 4, "micro_batches": micro_batches},
            cuda_graphs="full",
            expert_overlap=overlap,
            exposed_share=share,
        )
        return estimator.predict(model=QWEN, parallelism=layout, interval=False).step_time_s

    for micro_batches in (1, 5):
        alone, hidden, half = (
            step_s(overlap, share, micro_batches)
            for overlap, share in ((False, 0.25), (True, 0), (True, 0.25))
        )
        assert hidden == pytest.approx(alone) if micro_batches == 1 else hidden < half < alone
        assert half - hidden == pytest.approx((alone - hidden) / 2, rel=0.02, abs=1e-6)


def test_biases_of_experts_are_apart_unless_a_graph_of_whole_passes_fuses_them() -> None:
    apart, fused = layer("gpt-oss-120b"), layer("gpt-oss-120b", cuda_graphs="full")
    assert {name for name, one in apart.items() if one.call != fused[name].call} == {
        "experts_up_bias",
        "experts_activation",
        "experts_down_bias",
        "experts_down_bias_gradients",
    }
    forward, backward = (apart[f"experts_down_bias{name}"] for name in ("", "_gradients"))
    assert forward.call is not None
    assert backward.call is not None
    assert (forward.call.count, forward.directions) == (7, (Direction.FORWARD,))
    assert (backward.call.count, backward.directions) == (20, (Direction.BACKWARD,))
    assert layer() == layer(cuda_graphs="full")


def test_rows_of_experts_in_8_bit_are_padded_and_unpadded_by_a_copy() -> None:
    def copies(**options: Any) -> set[str]:
        calls = {name: one.call for name, one in layer(**options).items()}
        return {name for name in ("pad_rows", "unpad_rows") if (call := calls[name]) and call.count}

    assert copies(fp8_recipe="mxfp8") == {"pad_rows", "unpad_rows"}
    assert copies(fp8_recipe="mxfp8", cuda_graphs="partial") == copies(fp8_recipe="mxfp8")
    for aligned in (
        {},
        {"fp8_recipe": "mxfp8", "cuda_graphs": "full"},
        {"fp8_recipe": "mxfp8", "expert_capacity": 1.0, "expert_padding": True},
        {"fp8_recipe": "mxfp8", "fp8_linears": ("attention", "mlp")},
    ):
        assert not copies(**aligned)


def test_a_device_waits_for_the_first_operator_after_the_numbers_of_rows() -> None:
    """Large micro-batches hide the host but for one operator of every layer's forward pass."""
    estimator = Estimator.load("h100-sxm")

    def step_s(**options: Any) -> float:
        layout = Parallelism(**{**LAYOUT, "dp": 8, "ep": 8, "micro_batch": 8, **options})
        return estimator.predict(model=QWEN, parallelism=layout, interval=False).step_time_s

    for micro_batches in (1, 2):
        waited_s = step_s(micro_batches=micro_batches) - step_s(
            micro_batches=micro_batches, cuda_graphs="full"
        )
        assert waited_s == pytest.approx(48 * 200e-6 * micro_batches)


def test_graphs_of_whole_passes_take_the_hosts_time() -> None:
    estimator = Estimator.load("h100-sxm")
    times = {
        graphs: estimator.predict(
            model=QWEN,
            parallelism=Parallelism(**{**LAYOUT, "dp": 8, "ep": 8}, cuda_graphs=graphs),
            interval=False,
        ).step_time_s
        for graphs in ("none", "partial", "full")
    }
    assert times["none"] == times["partial"] > times["full"]
    # 44 operators of 48 layers at least.
    assert times["none"] > 48 * 44 * 200e-6


def test_what_is_not_known_is_named() -> None:
    for field, known in (
        ("expert_dispatcher", "all_to_all, deepep or hybridep"),
        ("cuda_graphs", "none, partial or full"),
    ):
        with pytest.raises(UsageError, match=f"{field} is 'x', expected {known}"):
            Parallelism(**LAYOUT, **{field: "x"})
    with pytest.raises(UsageError, match=r"recompute_modules .*moe_act"):
        Parallelism(**LAYOUT, recompute_modules=("x",))
