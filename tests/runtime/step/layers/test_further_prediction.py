"""Predictions of further tokens by hand: calls, collectives, parameters, memory, and where in a pipeline they are."""

from dataclasses import replace

from kernelcast.runtime import Cluster, ModelConfig, Parallelism
from kernelcast.runtime.memory.stages import stage_memory
from kernelcast.runtime.step.decomposition import LAST, Decomposition, decompose
from kernelcast.runtime.step.op import Calls, Component
from kernelcast.runtime.step.parameters import total_parameters
from tests.runtime.step.layers.conftest import MIXTURE

# Two layers, the last one with four experts, and predictions of two further tokens.
MODEL = replace(MIXTURE, layers=2, experts=4, shared_expert_size=0, extra_predictions=2)
PLAIN = replace(MODEL, extra_predictions=0)
LAYOUT = Parallelism(pp=2, tp=2, dp=2, ep=2, micro_batch=3, micro_batches=2, sequence_parallel=True, zero=0)


def decomposed(model: ModelConfig, **changes: object) -> Decomposition:
    layout = replace(LAYOUT, **changes)
    return decompose(model=model, parallelism=layout, cluster=Cluster(gpus_per_node=8), bucket_entries=10**9)


def counted(calls: Calls) -> dict[tuple[str, str, tuple[int, ...]], int]:
    """How often each operator is called, by role and shape."""
    found: dict[tuple[str, str, tuple[int, ...]], int] = {}
    for one in calls:
        key = (f"{one.operator}/{one.direction}", one.role, one.shape)
        found[key] = found.get(key, 0) + one.count
    return {key: count for key, count in found.items() if count}


def test_every_further_prediction_is_a_layer_a_projection_and_the_loss_again() -> None:
    further, plain = decomposed(MODEL), decomposed(PLAIN)
    assert further.layers == plain.layers
    assert further.first == plain.first
    [of_experts] = [layer for layer in plain.layers if any(one.name == "router" for one in layer.ops)]
    for name in ("forward", "backward"):
        expected = counted(getattr(plain.last.passes, name).calls)
        expected = {key: 3 * count for key, count in expected.items()}
        for block in (of_experts, plain.first):
            for key, count in counted(getattr(block.passes, name).calls).items():
                expected[key] = expected.get(key, 0) + 2 * count
        found = counted(getattr(further.last.passes, name).calls)
        own = {
            key: count - expected.get(key, 0) for key, count in found.items() if count != expected.get(key, 0)
        }
        # 48 tokens, 24 on a device; the projection is cut in two.
        if name == "forward":
            assert own == {
                ("rms_norm/forward", "", (3, 8, 32)): 4,
                ("gemm/forward", "next_token", (48, 64, 16)): 2,
                # The projection's input, twice as wide, is gathered, and its output.
                ("all_gather/once", "tensor", (768, 1, 2)): 6,
            }
        else:
            assert own == {
                ("rms_norm/backward", "", (3, 8, 32)): 4,
                ("gemm/input_gradient", "next_token", (48, 64, 16)): 2,
                ("gemm/weight_gradient", "next_token", (48, 64, 16)): 2,
                ("all_gather/once", "tensor", (768, 1, 2)): 4,
                ("reduce_scatter/once", "tensor", (1536, 1, 2)): 4,
            }


def summed(parts: Decomposition) -> list[str]:
    """Ops of the last stage's update over a copy of the embedding."""
    ops = parts.update(parts.stages[-1])
    return [one.name for one in ops if one.call is not None and one.call.shape[0] == 256 * 32 // 2]


def test_parameters_are_the_last_stages_and_none_of_the_models() -> None:
    assert total_parameters(MODEL) == total_parameters(PLAIN)
    further, plain = decomposed(MODEL), decomposed(PLAIN)
    first, last = (
        further.parameters(stage) - plain.parameters(other)
        for stage, other in zip(further.stages, plain.stages, strict=True)
    )
    # On one of two devices: attention 32 · 128 / 2, router 32 · 4, two of four experts of 3 · 32 · 20, four norms and a
    # final one, the projection 64 · 32 / 2; and once a copy of the embedding, 256 · 32 / 2.
    layer = 32 * 128 // 2 + 32 * 4 + 2 * 3 * 32 * 20
    assert (first, last) == (0, 2 * (layer + 5 * 32 + 64 * 32 // 2) + 256 * 32 // 2)
    # The copy's gradients are summed with the first stage's.
    assert summed(further) == [Component.ALL_REDUCE]
    # A single stage has the embedding already.
    one, other = decomposed(MODEL, pp=1), decomposed(PLAIN, pp=1)
    more = one.parameters(one.stages[0]) - other.parameters(other.stages[0])
    assert more == last - 256 * 32 // 2
    assert not summed(one)


def test_full_recomputation_runs_their_layers_again() -> None:
    kept, again = decomposed(MODEL), decomposed(MODEL, recompute="full")
    routers = [
        sum(one.count for one in parts.last.recomputed.calls if one.operator == "router")
        for parts in (kept, again)
    ]
    assert routers == [0, 2]


def test_sharded_experts_of_further_predictions_are_those_of_a_device() -> None:
    gathered, scattered = decomposed(MODEL, zero=3, dp=4).shards[LAST]
    # Two of four experts of 3 · 32 · 20 entries, in two layers, on 4 devices: tp · dp / ep.
    for calls, entries in ((gathered, 2 * 2 * 3 * 32 * 20 // 4), (scattered, 2 * 2 * 3 * 32 * 20)):
        assert [one.shape[0] for one in calls if one.role == "expert_data"] == [entries]


def test_memory() -> None:
    further, plain = stage_memory(MODEL, LAYOUT), stage_memory(PLAIN, LAYOUT)
    assert further[0] == plain[0]
    assert further[1].logits_bytes == 3 * plain[1].logits_bytes
    # The last stage has one layer, of the same kind, and keeps one micro-batch: two layers more than it had. Each with
    # the final norm's input and output, and before it the outputs of two norms and an embedding: 5 · 24 · 32 entries
    # of 2 bytes, and two statistics of 4 bytes for 24 tokens.
    one_layer = stage_memory(replace(PLAIN, layers=3), replace(LAYOUT, layer_counts=(1, 2)))[1]
    layer = one_layer.activations_bytes - plain[1].activations_bytes
    ends = 5 * 24 * 32 * 2 + 2 * 24 * 4
    assert further[1].activations_bytes - plain[1].activations_bytes == 2 * (layer + ends)


def test_one_device_exchanges_nothing() -> None:
    alone = decomposed(MODEL, tp=1, ep=1, dp=1, sequence_parallel=False)
    passes = alone.last.passes
    assert not (*passes.forward.collectives, *passes.backward.collectives)
