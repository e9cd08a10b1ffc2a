"""Activations kept by Megatron-core's modules with TransformerEngine, by hand and compared with torch's."""

from dataclasses import replace
from typing import Any

import pytest

from kernelcast.runtime import ModelConfig, Parallelism
from kernelcast.runtime.memory.stages import StageMemory, stage_memory
from kernelcast.runtime.request.fields import Float8Recipe, ModuleKind, OffloadModule, RecomputeModule

# One layer: S = 64 tokens of 32, 4 query and 2 key-value heads of 8, MLP of 96, vocabulary of 256 on 2 devices.
MODEL = ModelConfig(
    name="small",
    hidden_size=32,
    sequence_length=64,
    attention_heads=4,
    kv_heads=2,
    layers=1,
    vocabulary_size=256,
    mlp_size=96,
    norm="rms_norm",
    activation="swiglu",
)
S, H, A, K, F, V = 64, 32, 32, 16, 96, 256


def stage(model: ModelConfig = MODEL, **layout: Any) -> StageMemory:
    given: dict[str, Any] = {
        "pp": 1,
        "tp": 1,
        "dp": 1,
        "micro_batch": 1,
        "micro_batches": 1,
        "loss": "in_place",
    }
    found = stage_memory(model, Parallelism(**(given | layout)), dtype="bfloat16")
    return found[0]


def both(model: ModelConfig = MODEL, **layout: Any) -> tuple[StageMemory, StageMemory]:
    return stage(model, kept_by="torch", **layout), stage(model, kept_by="megatron", **layout)


@pytest.mark.parametrize("tp", [1, 2])
def test_what_a_layer_keeps(tp: int) -> None:
    torch, megatron = both(tp=tp, sequence_parallel=tp > 1)
    # Input, norm, input of the second norm, norm: 4 of H. Queries, keys, values, output: 2A + 2K. Gate, up and product:
    # 3F. Two statistics of norms and one per head in 4 bytes. All cut by tp. The final norm's input and output.
    kept = 2 * S * (4 * H + 2 * A + 2 * K + 3 * F) + 4 * S * (2 + 4)
    assert megatron.activations_bytes == (kept + 2 * S * 2 * H) // tp
    # torch keeps the QKV product by a view of its values (A + K more), and the gate after SiLU.
    assert torch.activations_bytes - megatron.activations_bytes == 2 * S * (A + K + F) // tp


def test_values_are_kept_once_without_rotation() -> None:
    # Multi-head: TransformerEngine knows the layout of the QKV product and takes views of it, as torch does.
    torch, megatron = both(replace(MODEL, kv_heads=4, activation="gelu", rotary=False))
    assert torch.activations_bytes == megatron.activations_bytes


@pytest.mark.parametrize("rotary", [True, False])
def test_repeated_heads_of_an_unfused_softmax(rotary: bool) -> None:
    model = replace(MODEL, attention="fused_softmax", activation="gelu", rotary=rotary)
    torch, megatron = both(model)
    # Three tensors of all heads. Queries that are not rotated are a view of the QKV product in torch.
    assert torch.activations_bytes - megatron.activations_bytes == (0 if rotary else 2 * S * 2 * K)


def test_gradients_of_weights_are_made_by_the_products() -> None:
    # An MLP so wide that its weight gradient is the fullest moment with torch's modules, on a stage without a loss.
    model = replace(MODEL, mlp_size=4096, activation="gelu", layers=2, sequence_length=16)
    first = {"pp": 2, "micro_batches": 2, "loss": "fused"}
    torch, megatron = both(model, **first)
    s, f = 16, 4096
    ids, tables = 2 * 8 * s, 2 * 4 * s * 8
    # The gradient of the output, that of the projection's input, and that of its weights.
    assert torch.working_bytes == 2 * s * H + 2 * s * f + 2 * f * H + ids + tables
    # No gradient of weights, but an unused one of every shape: QKV, attention output, up, down.
    unused = 2 * (H * (A + 2 * K) + A * H + 2 * f * H)
    assert megatron.working_bytes == 2 * s * H + 2 * s * f + unused + ids + tables
    # They are a layer's, not every layer's, and none is on a stage without layers.
    deeper = stage(replace(model, layers=8), kept_by="megatron", **first)
    assert deeper.working_bytes == megatron.working_bytes
    empty = stage(model, kept_by="megatron", layer_counts=(0, 2), **first)
    assert empty.working_bytes == stage(model, kept_by="torch", layer_counts=(0, 2), **first).working_bytes


def test_a_gated_mlp_with_sequence_parallelism() -> None:
    # The gathered gradient of the output is freed before the activation's gradients exist.
    first = {"pp": 2, "tp": 2, "micro_batches": 2, "kept_by": "megatron"}
    model = replace(MODEL, layers=2)
    ids, tables, unused = 2 * 8 * S, 2 * 4 * S * 8, H * (A + 2 * K) + A * H + 3 * F * H
    at_activation = 2 * S * H // 2 + 2 * S * 2 * F // 2
    assert (
        stage(model, sequence_parallel=True, **first).working_bytes == at_activation + unused + ids + tables
    )
    # With an MLP narrower than the hidden size, it is the fullest.
    narrow, unused = replace(model, mlp_size=16), H * (A + 2 * K) + A * H + 3 * 16 * H
    at_projection = 2 * S * H // 2 + 2 * S * H + 2 * S * 16 // 2
    found = stage(narrow, sequence_parallel=True, **first).working_bytes
    assert found == at_projection + unused + ids + tables


@pytest.mark.parametrize("tp", [1, 2])
def test_what_torchtitans_list_of_operators_saves(tp: int) -> None:
    cut = {"tp": tp, "sequence_parallel": tp > 1, "kept_by": "torchtitan"}
    found = stage(**cut, recompute="selective", recompute_modules=("per_op",))
    # The input, queries, values, attention's output and its log-sum-exp, the gate, and the projection down, which with
    # tensor parallelism is whole and then summed and scattered, as attention's output is. The final norm's input and
    # its gathered output.
    kept = 2 * S * (H + A + K + A + F) // tp + 4 * S * 4 // tp + 2 * S * H
    kept += 2 * 2 * S * H // tp if tp > 1 else 0
    assert found.activations_bytes == kept + 2 * S * H // tp + 2 * S * H
    # A layer's other activations come back at once, and the MLP's forward pass leaves the sum before its norm, the norm
    # and its statistic, and what it makes but the gate and the projection down: fragments beneath the logits.
    wide = replace(MODEL, vocabulary_size=4096)
    found = stage(wide, **cut, loss="plain", recompute="selective", recompute_modules=("per_op",))
    freed = 2 * S * (H // tp + 3 * F // tp) + 4 * S // tp - (tp > 1) * S * H
    assert found.fragments_bytes == freed
    assert stage(wide, **cut, loss="plain").fragments_bytes == 0


def test_what_is_gathered_is_kept() -> None:
    cut = {"tp": 2, "sequence_parallel": True}
    torch, titan = stage(**cut), stage(**cut, kept_by="torchtitan")
    # The other half of both norms' outputs and of the final norm's.
    assert titan.activations_bytes - torch.activations_bytes == 3 * 2 * S * H // 2
    # A loss over a cut vocabulary has another tensor in fp32.
    wide = {**cut, "model": replace(MODEL, vocabulary_size=4096), "loss": "plain", "recompute": "full"}
    assert (
        stage(**wide, kept_by="torchtitan").working_bytes - stage(**wide).working_bytes == 4 * S * 4096 // 2
    )


@pytest.mark.parametrize("pp", [2, 4])
def test_what_stages_send_and_receive(pp: int) -> None:
    def stages(kept_by: ModuleKind) -> tuple[float, ...]:
        layout = Parallelism(pp=pp, tp=1, dp=1, micro_batch=1, micro_batches=8, kept_by=kept_by)
        return tuple(
            one.activations_bytes / (2 * S * H)
            for one in stage_memory(replace(MODEL, layers=8), layout, dtype="bfloat16")
        )

    torch, titan = stages("torch"), stages("torchtitan")
    # torch's PipelineStage: a buffer per micro-batch and side; what waits is an input that a layer keeps anyway.
    waiting = [pp - stage for stage in range(pp)]
    received = [
        8 * ((stage > 0) + (stage < pp - 1)) - (waiting[stage] if stage else 0) for stage in range(pp)
    ]
    assert [b - a for a, b in zip(torch, titan, strict=True)] == pytest.approx(received)


def test_what_was_sent_stays_until_its_backward_pass() -> None:
    model = replace(MODEL, layers=4)
    first, last = stage_memory(
        model, Parallelism(pp=2, tp=1, dp=1, micro_batch=1, micro_batches=4), dtype="bfloat16"
    )
    one, _ = stage_memory(
        model,
        Parallelism(pp=2, tp=1, dp=1, micro_batch=1, micro_batches=1),
        dtype="bfloat16",
    )
    alone = stage(replace(MODEL, layers=2))
    ends = 2 * S * 2 * H  # the final norm's input and output
    assert one.activations_bytes == alone.activations_bytes - ends + 2 * S * H
    assert first.activations_bytes == 2 * one.activations_bytes
    assert last.activations_bytes == alone.activations_bytes


@pytest.mark.parametrize(
    ("recipe", "entry"),
    [("tensorwise", 1.0), ("blockwise", 1 + 4 / 128), ("mxfp8", 1 + 1 / 32), ("nvfp4", 0.5 + 1 / 16)],
)
def test_scales_are_kept_too(recipe: Float8Recipe, entry: float) -> None:
    plain, found = (
        stage(kept_by="megatron", fp8_recipe=one, fp8_linears=("mlp",)) for one in ("none", recipe)
    )
    # A norm's output and what is projected down; the matrices as they are and transposed.
    saved = (2 - entry) * S * (H + F)
    assert plain.activations_bytes - found.activations_bytes == pytest.approx(saved, abs=1)
    assert found.weights_bytes - plain.weights_bytes == pytest.approx(2 * entry * 3 * H * F, abs=1)


@pytest.mark.parametrize(
    ("modules", "entries"),
    [
        (("attn_norm", "mlp_norm"), 0),  # TransformerEngine's linears have them
        (("qkv_linear", "mlp_norm"), 2 * H),  # what it reads, normalized and not
        (("core_attn",), A + 2 * K + 2 * 4),  # and the log-sum-exp of 4 heads in 4 bytes
        (("core_attn", "attn_proj"), 2 * A + 2 * K + 2 * 4),
        (("moe_act",), 0),
    ],
)
def test_modules_that_are_offloaded(modules: tuple[OffloadModule, ...], entries: int) -> None:
    layers = replace(MODEL, layers=4)
    plain = stage(layers, kept_by="megatron")
    away = stage(layers, kept_by="megatron", offload_activations=0.5, offload_modules=modules)
    norm = 2 * 2 * S * ("qkv_linear" in modules)  # its statistic in 4 bytes
    assert away.host_bytes == 0.5 * 4 * (2 * S * entries + norm)
    assert away.activations_bytes == plain.activations_bytes - away.host_bytes
    assert away.working_bytes == plain.working_bytes + away.host_bytes / 2


def test_graphs_of_modules_have_a_pool_of_their_own() -> None:
    found, plain = stage(cuda_graphs="partial"), stage()
    # Gradients of queries, keys, values and of attention's output; of the layer's output and input.
    assert found.working_bytes - plain.working_bytes == 2 * S * (A + 2 * K + A) + 2 * 2 * S * H
    assert stage(cuda_graphs="full") == plain


def test_heads_exchanged_for_tokens_keep_the_output_twice() -> None:
    split = {"cp": 2, "micro_batch": 2}
    ring, exchanged = stage(**split), stage(**split, context_exchange="all_to_all")
    assert exchanged.activations_bytes - ring.activations_bytes == 2 * S * A


def test_async_tensor_parallelism_has_its_buffers_elsewhere() -> None:
    cut = {"tp": 2, "sequence_parallel": True, "kept_by": "torchtitan", "recompute": "full", "loss": "plain"}
    model = replace(MODEL, vocabulary_size=4096)
    usual, overlapped = stage(model, **cut), stage(model, **cut, tensor_overlap="products")
    assert usual.fragments_bytes - overlapped.fragments_bytes == 2 * 2 * S * H
    assert usual.total_bytes == overlapped.total_bytes


def test_workspaces_of_cut_products_are_of_tensor_parallelism() -> None:
    megatron = {"kept_by": "megatron", "tensor_overlap": "products"}
    for tp, streams in ((1, 0), (2, 2)):
        cut = {"tp": tp, "sequence_parallel": tp > 1, "kept_by": "megatron"}
        usual, overlapped = stage(**cut), stage(**cut | megatron)
        assert overlapped.workspace_bytes - usual.workspace_bytes == streams * 32 * 2**20


# Of 64 tokens each goes to 2 of 4 experts of 24, and to a shared one of 40.
MIXED = replace(MODEL, experts=4, experts_per_token=2, expert_size=24, shared_expert_size=40)
ROWS, E, SHARED = 2 * S, 24, 2 * S * 3 * 40
LATENT = replace(MODEL, kv_heads=4, head_size=12, value_head_size=8, rotary_size=4, kv_rank=6, query_rank=10)
NORM, OF_HEADS = 2 * S * H + 4 * S, 2 * S * (2 * 4 * 12 + 4 * 8)
OF_EXPERTS = 2 * 4 * S * 4 + 2 * ROWS * (H + 3 * E) + SHARED


@pytest.mark.parametrize(
    ("model", "kept_by", "module", "less"),
    [
        (MODEL, "megatron", "core_attn", 4 * 4 * S),  # the log-sum-exp of 4 heads
        # Norms are part of the linears, so the MLP's runs again with it.
        (MODEL, "megatron", "layernorm", 0),
        (MODEL, "megatron", "mlp", 2 * S * 3 * F + NORM),
        (MODEL, "megatron_local", "layernorm", 2 * NORM),
        (MODEL, "torch", "layernorm", 2 * NORM),
        (MODEL, "torch", "mlp", 2 * S * 4 * F),
        (MODEL, "megatron", "moe", 0),
        # Two products read the norm's output: it is a module of its own.
        (MIXED, "megatron", "layernorm", NORM),
        (MIXED, "megatron", "mlp", 0),
        # What the activation reads stays.
        (MIXED, "megatron", "moe_act", 2 * ROWS * E),
        (MIXED, "torch", "moe_act", 2 * ROWS * 2 * E),
        (MIXED, "megatron", "shared_experts", SHARED),
        (MIXED, "megatron", "moe", OF_EXPERTS),
        (LATENT, "megatron", "layernorm", NORM),
        (LATENT, "megatron", "mla_up_proj", OF_HEADS + 2 * S * (6 + 10)),
        (LATENT, "torch", "mla_up_proj", OF_HEADS),
    ],
)
def test_what_a_module_that_runs_again_keeps_less(
    model: ModelConfig, kept_by: ModuleKind, module: RecomputeModule, less: int
) -> None:
    some, plain = (
        stage(model, kept_by=kept_by, recompute=how, recompute_modules=(module,))
        for how in ("selective", "none")
    )
    assert plain.activations_bytes - some.activations_bytes == less


def test_attention_that_runs_again_keeps_no_output_in_16_bits_next_to_the_cast_one() -> None:
    options = {"kept_by": "megatron", "fp8_recipe": "tensorwise"}
    some, plain = (stage(**options, recompute=how) for how in ("selective", "none"))
    assert plain.activations_bytes - some.activations_bytes == 4 * 4 * S + 2 * S * A
