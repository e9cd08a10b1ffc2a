"""Dispatchers and the host's time of mixtures of experts."""

import math

import pytest

from kernelcast.runtime import Cluster, Estimator, Parallelism, UsageError, load_model
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


def test_hybridep_permutes_on_the_way() -> None:
    counts = {
        dispatcher: sum(
            one.call.count
            for one in layer(expert_dispatcher=dispatcher).values()
            if one.call is not None and one.call.operator in ("permute", "unpermute", "copy")
        )
        for dispatcher in ("all_to_all", "deepep", "hybridep")
    }
    assert counts == {"all_to_all": 4, "deepep": 2, "hybridep": 0}


def test_biases_of_experts_are_apart_unless_a_graph_of_whole_passes_fuses_them() -> None:
    apart, fused = layer("gpt-oss-120b"), layer("gpt-oss-120b", cuda_graphs="full")
    assert {name for name, one in apart.items() if one.call != fused[name].call} == {
        "experts_up_bias",
        "experts_activation",
        "experts_down_bias",
    }
    assert layer() == layer(cuda_graphs="full")


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
