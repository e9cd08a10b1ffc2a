"""Laws of the memory of stages: what must never grow, what must add up."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernelcast.runtime import ModelConfig, Parallelism, UsageError
from kernelcast.runtime.memory.stages import StageMemory, stage_memory
from kernelcast.runtime.memory.states import PRECISIONS
from kernelcast.runtime.request.models import built_in_names, load_model
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS
from kernelcast.runtime.step.parameters import total_parameters
from tests.runtime.memory.shared_fields import SHARED_FIELDS
from tests.runtime.pipelines import pipelines

DTYPES = tuple(PRECISIONS)
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "working", "workspace")


def part(stage: StageMemory, name: str) -> int:
    return int(getattr(stage, f"{name}_bytes"))


def states(stage: StageMemory) -> int:
    return stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes


# Tensor parallelism cuts all of their matrices, whatever else is cut.
DENSE = [
    name
    for name in built_in_names()
    if not (load_model(name).experts or load_model(name).kv_rank or load_model(name).extra_predictions)
]


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    if draw(st.booleans()):
        return load_model(draw(st.sampled_from(DENSE)))
    kv_heads = draw(st.sampled_from((1, 2, 4, 8)))
    heads = kv_heads * draw(st.sampled_from((1, 2, 4)))
    length = draw(st.integers(1, 64)) * 64
    return ModelConfig(
        name="any",
        hidden_size=heads * draw(st.integers(1, 128)),
        head_size=draw(st.sampled_from((8, 64, 128))),
        sequence_length=length,
        attention_heads=heads,
        kv_heads=kv_heads,
        layers=draw(st.integers(1, 40)),
        vocabulary_size=draw(st.integers(1, 300_000)),
        mlp_size=draw(st.integers(1, 4096)) * 8,
        norm=draw(st.sampled_from(("layer_norm", "rms_norm"))),
        activation=draw(st.sampled_from(("gelu", "swiglu"))),
        attention=draw(st.sampled_from(("flash", "fused_softmax", "unfused"))),
        rotary=draw(st.booleans()),
        parallel_residual=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        learned_positions=draw(st.sampled_from((0, length))),
    )


@st.composite
def layouts(draw: st.DrawFn, model: ModelConfig) -> Parallelism:
    shape = draw(pipelines(most_pp=8, most_micro_batches=9, most_chunks=3))
    assume(shape["pp"] * shape["virtual_stages"] <= model.layers or shape["pp"] == 1)
    shared = draw(st.fixed_dictionaries(SHARED_FIELDS))
    if shared["lora_rank"] and draw(st.booleans()):
        shared |= {"fp8_recipe": "none", "frozen_weights": "nf4"}
    layout = Parallelism(
        **shape,
        tp=draw(st.sampled_from((1, 2, 4, 8))),
        dp=draw(st.integers(1, 1000)),
        micro_batch=draw(st.integers(1, 16)),
        zero=draw(st.integers(0, 3)),
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
        sequence_parallel=draw(st.booleans()),
        **shared,
        expert_imbalance=draw(st.sampled_from((1.0, 1.1))) if model.experts else 1.0,
    )
    try:
        layout.check(model)
    except UsageError:
        assume(False)
    return layout


@st.composite
def asked(draw: st.DrawFn) -> tuple[ModelConfig, Parallelism, dict[str, Any]]:
    model = draw(models())
    options = {
        "dtype": draw(st.sampled_from(DTYPES)),
        "is_cpu": draw(st.booleans()),
    }
    return model, draw(layouts(model)), options


@given(asked())
@settings(max_examples=80)
def test_sizes_are_whole_and_add_up(question: tuple[ModelConfig, Parallelism, dict[str, Any]]) -> None:
    model, layout, options = question
    stages = stage_memory(model, layout, **options)
    assert [stage.stage for stage in stages] == list(range(layout.pp))
    assert sum(stage.layers for stage in stages) == model.layers * layout.copies
    for stage in stages:
        sizes = [part(stage, name) for name in PARTS]
        assert all(type(size) is int and size >= 0 for size in sizes)
        assert stage.total_bytes == sum(sizes)
        assert stage.weights_bytes > 0
        has_loss = {"zb_v": [0], "dualpipe_v": [0], "dualpipe": [0, layout.pp - 1]}
        assert (stage.logits_bytes > 0) == (stage.stage in has_loss.get(layout.schedule, [layout.pp - 1]))
        assert stage.layers == 0 or stage.activations_bytes > 0


@given(asked())
@settings(max_examples=60)
def test_what_never_grows(question: tuple[ModelConfig, Parallelism, dict[str, Any]]) -> None:
    model, layout, options = question
    layout = replace(
        layout, recompute_layers=0
    )  # with some of them, selective recomputation keeps less than full

    def needed(**change: Any) -> tuple[StageMemory, ...]:
        return stage_memory(model, replace(layout, **change), **options)

    by_zero = [needed(zero=zero) for zero in range(4)]
    by_recompute = [needed(recompute=recompute) for recompute in ("none", "selective", "full")]
    by_replicas = [needed(dp=dp) for dp in (layout.dp, 2 * layout.dp)]
    lengthened = [needed(micro_batch=b) for b in (2 * layout.micro_batch, layout.micro_batch)]
    waiting = [needed(micro_batches=m) for m in (2 * layout.micro_batches, layout.micro_batches)]
    for index in range(layout.pp):
        _never_grows([states(stages[index]) for stages in by_zero])
        _never_grows([stages[index].weights_bytes for stages in by_zero])
        _never_grows([stages[index].activations_bytes for stages in by_recompute])
        _never_grows([states(stages[index]) for stages in by_replicas])
        _never_grows([stages[index].total_bytes for stages in lengthened])
        _never_grows([stages[index].total_bytes for stages in waiting])
        assert len({stages[index].activations_bytes for stages in by_zero}) == 1


def _never_grows(sizes: list[int]) -> None:
    assert sizes == sorted(sizes, reverse=True)


@given(asked())
@settings(max_examples=80)
def test_megatrons_modules_keep_no_more(question: tuple[ModelConfig, Parallelism, dict[str, Any]]) -> None:
    model, layout, options = question
    # Masters that torch shards in the weights' place stay where optimizer states leave the device.
    layout = replace(layout, fp8_recipe="none", fp8_dispatch=False, fp8_weights=False, offload_optimizer=0.0)
    # Norms that TransformerEngine runs inside linears are no modules to recompute or offload.
    chosen = (
        tuple(name for name in names if not name.endswith("norm")) or ("core_attn",)
        for names in (layout.recompute_modules, layout.offload_modules)
    )
    layout = replace(layout, **dict(zip(("recompute_modules", "offload_modules"), chosen, strict=True)))
    torch, megatron = (
        stage_memory(model, replace(layout, kept_by=modules), **options) for modules in ("torch", "megatron")
    )
    for one, other in zip(torch, megatron, strict=True):
        assert other.activations_bytes <= one.activations_bytes
        assert other.logits_bytes <= one.logits_bytes
        assert states(other) >= states(one)


@given(asked())
@settings(max_examples=60)
def test_shards_together_are_no_less_than_the_whole(
    question: tuple[ModelConfig, Parallelism, dict[str, Any]],
) -> None:
    model, layout, options = question
    cut = stage_memory(model, layout, **options)
    whole = stage_memory(model, replace(layout, tp=1), **options)
    for shard, all_of_it in zip(cut, whole, strict=True):
        for name in ("weights", "gradients", "optimizer", "activations", "logits"):
            together = layout.tp * part(shard, name)
            # A share of less than a byte may be missing where a size does not divide.
            assert together >= part(all_of_it, name) * (1 - 1e-9) - layout.tp
    if layout.sequence_parallel:
        apart = stage_memory(model, replace(layout, sequence_parallel=False), **options)
        more = 0.0
        if "per_op" in layout.recompute_modules:
            # By operator, torchtitan saves what a reduce-scatter returns, two in a layer, and nothing of an all-reduce.
            tokens = layout.micro_batch * model.sequence_length / layout.cp / layout.tp
            more = 2 * model.layers * layout.micro_batches * 4 * tokens * model.hidden_size
        assert all(a.activations_bytes <= b.activations_bytes + more for a, b in zip(cut, apart, strict=True))


@given(asked())
@settings(max_examples=60)
def test_a_tensor_parallel_rank_is_a_narrower_model(
    question: tuple[ModelConfig, Parallelism, dict[str, Any]],
) -> None:
    # So what is measured on single devices holds for ranks too; DTensor's loss over a cut vocabulary has a copy more.
    model, layout, options = question
    assume(layout.kept_by != "torchtitan")
    tp = layout.tp
    layout = replace(layout, sequence_parallel=False, zero=0)
    multiple = layout.vocabulary_multiple
    vocabulary = -(-model.vocabulary_size // (multiple * tp)) * multiple
    narrower = replace(
        model,
        attention_heads=model.attention_heads // tp,
        kv_heads=model.kv_heads // tp,
        mlp_size=model.mlp_size // tp,
        recurrent_heads=model.recurrent_heads // tp,
        recurrent_groups=model.recurrent_groups // tp,
        vocabulary_size=vocabulary,
        biases="none",
    )
    ranks = stage_memory(replace(model, biases="none"), layout, **options)
    assume((model.kv_heads < model.attention_heads) == (narrower.kv_heads < narrower.attention_heads))
    assert ranks == stage_memory(narrower, replace(layout, tp=1), **options)


@given(asked())
@settings(max_examples=60)
def test_parameters_of_all_stages_are_the_models(
    question: tuple[ModelConfig, Parallelism, dict[str, Any]],
) -> None:
    model, layout, _ = question
    layout = replace(
        layout, tp=1, zero=0, dp=1, lora_rank=0, frozen_weights="same", fp8_recipe="none", fp8_dispatch=False
    )
    held = sum(stage.parameters for stage in stage_memory(model, layout))
    padding = -model.vocabulary_size % layout.vocabulary_multiple * model.hidden_size
    # Both ends of the model are on one stage where there is only one, or a stage's second chunk lies in reverse order.
    together = layout.pp == 1 or SCHEDULE_KINDS[layout.schedule].is_v
    ends = 1 if model.tied_embeddings and together else 2
    copy = model.vocabulary_size * model.hidden_size if model.tied_embeddings and not together else 0
    assert held == layout.copies * (total_parameters(model) + ends * padding + copy)
    layout = replace(layout, optimizer="adam_fused", optimizer_states="float32", offload_optimizer=0.0)
    fp32 = stage_memory(model, layout, dtype="float32")
    assert sum(states(stage) for stage in fp32) == 16 * held


def test_interleaving_keeps_more_than_1f1b() -> None:
    model = load_model("llama-2-7b")
    plain = Parallelism(pp=4, tp=1, dp=1, micro_batch=1, micro_batches=8)
    chunks = replace(plain, schedule="interleaved", virtual_stages=2, layer_counts=(4,) * 8)
    even = replace(plain, layer_counts=(8,) * 4)
    for a, b in zip(stage_memory(model, chunks), stage_memory(model, even), strict=True):
        assert a.activations_bytes > b.activations_bytes


def test_zero_3_holds_the_blocks_that_it_works_on() -> None:
    model = load_model("llama-2-7b")
    layout = Parallelism(pp=1, tp=1, dp=64, micro_batch=1, micro_batches=1, zero=2)
    two, three = (stage_memory(model, replace(layout, zero=zero))[0] for zero in (2, 3))
    # The vocabulary's matrix, 4096 · 32,000, is smaller than a layer, 202,383,360: two layers are gathered.
    assert three.working_bytes - two.working_bytes == 2 * 2 * 202_383_360
    alone = replace(layout, dp=1)
    assert len({stage_memory(model, replace(alone, zero=zero)) for zero in range(4)}) == 1


def test_gradients_in_fp32() -> None:
    model, layout = load_model("llama-2-7b"), Parallelism(pp=2, tp=2, dp=4, micro_batch=1, micro_batches=4)
    for zero, shards in ((0, 1), (1, 1), (2, 4), (3, 4)):
        narrow, wide = (
            stage_memory(model, replace(layout, zero=zero, reduce_dtype=dtype))[0]
            for dtype in ("same", "float32")
        )
        own = -(-narrow.parameters // shards)
        # FSDP's shards are the fp32 masters, and so are their gradients.
        assert (narrow.gradients_bytes, wide.gradients_bytes) == ((4 if zero == 3 else 2) * own, 4 * own)
        assert (narrow.weights_bytes, narrow.optimizer_bytes) == (wide.weights_bytes, wide.optimizer_bytes)
    # Trained in fp32, they are anyway.
    one, other = (
        stage_memory(model, replace(layout, reduce_dtype=d), dtype="float32") for d in ("same", "float32")
    )
    assert one == other


def test_wrong_questions() -> None:
    model = load_model("llama-2-7b")
    layout = Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=1)
    with pytest.raises(UsageError, match=r"^dtype is 'fp16', expected float16, bfloat16, float32, float64, "):
        stage_memory(model, layout, dtype="fp16")
    with pytest.raises(UsageError, match=r"^tp is 3, expected a divisor of attention_heads \(32\)"):
        stage_memory(model, replace(layout, tp=3))
    with pytest.raises(UsageError, match=r"^pp is 100, expected from 1 to 32 for 32 layers$"):
        stage_memory(model, replace(layout, pp=100))


def test_the_largest_sizes_stay_finite() -> None:
    most = 2**31 - 1
    model = ModelConfig(
        name="huge",
        hidden_size=most,
        sequence_length=most,
        attention_heads=most,
        layers=10_000,
        vocabulary_size=most,
        mlp_size=most,
        attention="unfused",
    )
    layout = Parallelism(pp=1, tp=1, dp=1, micro_batch=10**6, micro_batches=10**6, schedule="gpipe")
    assert stage_memory(model, layout)[0].total_bytes > 10**40


@pytest.mark.parametrize(
    ("dtype", "weight", "gradient", "optimizer"),
    [
        # With 16-bit weights: fp32 weights and Adam's two moments; with fp32 weights only the two moments.
        ("float16", 2, 2, 4 + 4 + 4),
        ("bfloat16", 2, 2, 4 + 4 + 4),
        ("float32", 4, 4, 4 + 4),
        ("float64", 8, 8, 8 + 8),
    ],
)
def test_bytes_per_parameter(dtype: str, weight: int, gradient: int, optimizer: int) -> None:
    model = load_model("llama-2-7b")
    layout = Parallelism(pp=1, tp=1, dp=8, micro_batch=1, micro_batches=1)
    # 32 layers of 202,383,360, two matrices of 32,000 · 4,096 and the final norm.
    held, shard = 6_738_415_616, 842_301_952
    for zero in range(4):
        layout = replace(layout, zero=zero, kept_by="megatron")
        [stage] = stage_memory(model, layout, dtype=dtype)
        assert stage.parameters == held
        assert stage.weights_bytes == weight * (shard if zero >= 3 else held)
        assert stage.gradients_bytes == gradient * (shard if zero >= 2 else held)
        assert stage.optimizer_bytes == optimizer * (shard if zero >= 1 else held)
    # FSDP of torch shards masters, as many bytes in all.
    [sharded] = stage_memory(model, replace(layout, kept_by="torch"), dtype=dtype)
    assert states(sharded) == states(stage)
    assert sharded.weights_bytes == max(4, weight) * shard


def test_layers_recomputed_together_keep_one_input_and_come_back_at_once() -> None:
    model = load_model("llama-2-7b")
    layout = Parallelism(pp=2, tp=1, dp=1, micro_batch=1, micro_batches=8, recompute="full")

    def first_stage(together: int, **change: Any) -> StageMemory:
        return stage_memory(model, replace(layout, recompute_together=together, **change))[0]

    one, five, more = (first_stage(together) for together in (1, 5, 99))
    none = first_stage(1, recompute="none")
    # A layer's input, 4096 · 4096 in 16 bit; 16 layers in groups of 5, 5, 5 and 1, for two micro-batches in flight.
    own = 2 * 4096 * 4096
    assert one.activations_bytes - five.activations_bytes == 2 * (16 - 4) * own
    assert one.activations_bytes - more.activations_bytes == 2 * (16 - 1) * own
    # All of what a layer keeps exists five times, or for all of a chunk.
    of_layer = (none.activations_bytes - one.activations_bytes) // 32 + own
    assert five.working_bytes - one.working_bytes == pytest.approx(4 * of_layer, rel=1e-3)
    assert more.working_bytes - one.working_bytes == pytest.approx(15 * of_layer, rel=1e-3)
    # Where only some layers are recomputed, each is alone.
    assert first_stage(5, recompute_layers=3) == first_stage(1, recompute_layers=3)


def test_buffers_are_counted_once_per_stage_with_layers() -> None:
    model = load_model("llama-2-7b")
    layout = Parallelism(
        pp=3, tp=1, dp=1, micro_batch=1, micro_batches=1, layer_counts=(16, 16, 0), recompute="full"
    )
    rotary, plain = (stage_memory(replace(model, rotary=flag), layout) for flag in (True, False))
    unfused, fused = (
        stage_memory(replace(model, rotary=False, attention=kind), layout)
        for kind in ("unfused", "fused_softmax")
    )
    # Two tables in fp32, 4096 · 128 each, and what a recomputed layer keeps of rotated queries and keys; on the last
    # stage neither.
    recomputed = 2 * 4096 * 2 * 4096
    tables = [a.working_bytes - b.working_bytes for a, b in zip(rotary, plain, strict=True)]
    assert tables == [2 * 4 * 4096 * 128 + recomputed] * 2 + [0]
    # The mask of an unfused softmax, a byte per pair of tokens.
    masks = [a.working_bytes - b.working_bytes for a, b in zip(unfused, fused, strict=True)]
    assert masks == [4096 * 4096] * 2 + [0]


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v2"])
@pytest.mark.parametrize("pp", [1, 4])
def test_experts_are_spread_and_the_rest_is_not(name: str, pp: int) -> None:
    model = load_model(name)
    layout = Parallelism(pp=pp, tp=1, dp=8, micro_batch=1, micro_batches=4, zero=0, vocabulary_multiple=1)
    whole, spread = (stage_memory(model, replace(layout, ep=ep), dtype="bfloat16") for ep in (1, 8))
    assert sum(stage.parameters for stage in whole) == total_parameters(model)
    experts = model.layers - model.dense_layers
    held = experts * model.experts * 3 * model.hidden_size * model.expert_width
    assert (
        sum(one.parameters - other.parameters for one, other in zip(whole, spread, strict=True))
        == held * 7 // 8
    )
    # Half of the experts' gradients and states on half as many: ZeRO shards what two devices hold over two.
    sharded = stage_memory(model, replace(layout, ep=4, zero=1), dtype="bfloat16")
    assert sum(stage.optimizer_bytes for stage in sharded) == pytest.approx(
        12 * total_parameters(model) / 8, rel=1e-6
    )
