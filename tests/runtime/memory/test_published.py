"""Memory against what papers publish: activations (arXiv 2205.05198), ZeRO (1910.02054), zero-bubble (2401.10241)."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from kernelcast.runtime import ModelConfig, Parallelism
from kernelcast.runtime.memory.contents import LayerContents
from kernelcast.runtime.memory.stages import StageMemory, stage_memory
from kernelcast.runtime.memory.states import model_states, precision_of
from kernelcast.runtime.request.fields import ModuleKind, Recompute
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.sizes import Sizes


def megatron(name: str, a: int, h: int, layers: int) -> ModelConfig:
    """A model of arXiv 2205.05198, Table 3: GPT-3's architecture, s = 2048, v = 51200."""
    return ModelConfig(
        name=name,
        hidden_size=h,
        sequence_length=2048,
        attention_heads=a,
        layers=layers,
        vocabulary_size=51200,
        attention="fused_softmax",
        rotary=False,
        learned_positions=2048,
        tied_embeddings=True,
    )


# Heads, hidden size, layers; tensor parallel 8 in all.
MODELS = [
    megatron("22B", 64, 6144, 48),
    megatron("175B", 96, 12288, 96),
    megatron("530B", 128, 20480, 105),
    megatron("1T", 160, 25600, 128),
]
SCORES = {"22B": 320 / 3, "175B": 80.0, "530B": 64.0, "1T": 64.0}  # 5as/h; the paper prints 80 and 64

BY_MODEL = pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])


@dataclass(frozen=True)
class KeptBytes:
    """What one layer keeps of one micro-batch: all of it, its input, the core of attention; for late weights."""

    total: int
    block_input: int
    core: int
    for_weights: int


def kept(model: ModelConfig, *, t: int = 1, sequence_parallel: bool = False, b: int = 1) -> KeptBytes:
    """One layer of one micro-batch, in fp16 with dropout."""
    s = Sizes.alone(model, tp=t, micro_batch=b, sequence_parallel=sequence_parallel, dropout=0.1)
    found = LayerContents.of(s, transformer_layer(s))  # selective checkpointing drops the core of attention
    return KeptBytes(
        total=found.block_input + found.kept,
        block_input=found.block_input,
        core=sum(found.dropped),
        for_weights=found.late,
    )


def in_sbh(model: ModelConfig, size: int) -> float:
    """Bytes of one sample's layer in units of sbh, as the paper's table has them."""
    return size / (model.sequence_length * model.hidden_size)


@BY_MODEL
@pytest.mark.parametrize("t", [1, 8])
def test_table_2(model: ModelConfig, t: int) -> None:
    scores = SCORES[model.name]
    tensor, sequence = kept(model, t=t), kept(model, t=t, sequence_parallel=True)
    # The paper leaves out the norms' statistics: mean and deviation of two norms, in fp32.
    h = model.hidden_size
    whole, shared = 16 / h, 16 / h / t
    assert in_sbh(model, tensor.total) == pytest.approx(10 + 24 / t + scores / t + whole)
    assert in_sbh(model, sequence.total) == pytest.approx((34 + scores) / t + shared)
    assert in_sbh(model, tensor.total - tensor.core) == pytest.approx(10 + 24 / t + whole)
    assert in_sbh(model, sequence.total - sequence.core) == pytest.approx(34 / t + shared)
    assert in_sbh(model, tensor.block_input) == 2


def test_micro_batches_scale_activations() -> None:
    assert kept(MODELS[0], b=4).total == 4 * kept(MODELS[0]).total


@pytest.mark.parametrize(("model", "saved"), [(MODELS[1], 0.70), (MODELS[2], 0.65)], ids=["175B", "530B"])
def test_selective_recomputation_saves_as_printed(model: ModelConfig, saved: float) -> None:
    # Section 5: 70 % for GPT-3 and 65 % for MT-NLG.
    one = kept(model, t=8, sequence_parallel=True)
    assert one.core / one.total == pytest.approx(saved, abs=0.006)


@BY_MODEL
def test_both_techniques_reduce_five_times(model: ModelConfig) -> None:
    # Section 6.1 and Figure 7: to about 20 % of tensor parallelism alone; full recomputation to about 10 %.
    alone = kept(model, t=8)
    both = kept(model, t=8, sequence_parallel=True)
    assert (both.total - both.core) / alone.total == pytest.approx(0.18, abs=0.025)
    assert alone.block_input / alone.total == pytest.approx(0.09, abs=0.015)


@BY_MODEL
@pytest.mark.parametrize("modules", ["torch", "megatron"])
def test_stages_keep_what_table_2_says(model: ModelConfig, modules: ModuleKind) -> None:
    """Table 2, per layer of a whole model: 34/t with selective recomputation, 2 with full, and one layer comes back."""
    layout = Parallelism(pp=1, tp=8, dp=1, micro_batch=1, micro_batches=1, kept_by=modules)
    s, h, t, layers = 2048, model.hidden_size, 8, model.layers
    statistics = 16 * s  # mean and deviation of two norms in fp32, which the paper leaves out
    found = {
        (recompute, cut): activations(
            model, replace(layout, recompute=recompute, sequence_parallel=cut, loss="in_place")
        )[0]
        for recompute in ("none", "selective", "full")
        for cut in (False, True)
    }

    def kept(recompute: Recompute, cut: bool) -> float:
        ends = (
            5 * s * h / (t if cut else 1)
        )  # section 4.3: the embedding's mask, the last norm's input and output
        return (found[recompute, cut].activations_bytes - ends) / layers

    scores = SCORES[model.name]
    assert kept("none", True) == pytest.approx((34 + scores) / t * s * h + statistics / t)
    assert kept("selective", True) == pytest.approx(34 / t * s * h + statistics / t)
    assert kept("selective", False) == pytest.approx((10 + 24 / t) * s * h + statistics)
    # The layers' inputs, which sequence parallelism cuts too.
    assert kept("full", False) == pytest.approx(2 * s * h)
    assert kept("full", True) == pytest.approx(2 * s * h / t)
    # One layer is recomputed in full, and its activations are held together with the gradients in use.
    again = (32 + scores) / t * s * h
    assert found["full", True].working_bytes > again


def test_without_dropout_masks_and_dropped_weights_are_gone() -> None:
    layout = Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=1)
    with_dropout, without = (
        stage_memory(MODELS[1], replace(layout, dropout=dropout))[0].activations_bytes
        for dropout in (0.1, 0.0)
    )
    s, h, a, layers = 2048, 12288, 96, 96
    # Two masks of a byte in every layer and one after the embedding; the scores' mask and dropped copy.
    assert with_dropout - without == layers * (2 * s * h + 3 * a * s * s) + s * h


def activations(model: ModelConfig, layout: Parallelism) -> tuple[StageMemory, ...]:
    return stage_memory(model, replace(layout, dropout=0.1))


@BY_MODEL
def test_ends_without_a_pipeline(model: ModelConfig) -> None:
    # Section 4.3: embedding mask sbh, last norm's and projection's inputs 2sbh each, logits in fp32 4sbv, over t.
    # Here the 16-bit logits stay too, 2sbv.
    layout = Parallelism(pp=1, tp=8, dp=1, micro_batch=1, micro_batches=1, sequence_parallel=True)
    stage = activations(model, layout)[0]
    s, h, t = 2048, model.hidden_size, 8
    layers = model.layers * kept(model, t=t, sequence_parallel=True).total
    assert stage.activations_bytes - layers == pytest.approx(5 * s * h / t, abs=1)
    assert stage.logits_bytes == 6 * s * 51200 // t


def test_pipelines_keep_all_layers_on_the_first_stage() -> None:
    # Section 4.2.3: the first stage of 1F1B keeps L layers whatever p is; interleaving 1 + (p − 1)/(pm) times that.
    # 175B: t = 8, p = 8, m = 3 (Table 3). An even cut, as there.
    model = replace(MODELS[1], learned_positions=0)
    layout = Parallelism(
        pp=8, tp=8, dp=1, micro_batch=1, micro_batches=64, sequence_parallel=True, layer_counts=(12,) * 8
    )
    one_layer = kept(model, t=8, sequence_parallel=True).total
    embedding_masks = 8 * 2048 * 12288 / 8
    plain = activations(model, layout)[0].activations_bytes
    # Appendix B: sent outputs are freed there; torch keeps one of each of the 8 micro-batches in flight.
    outputs = 8 * 2 * 2048 * 12288 / 8
    assert plain == pytest.approx(96 * one_layer + embedding_masks + outputs, abs=1)
    interleaved = replace(layout, schedule="interleaved", virtual_stages=3, layer_counts=(4,) * 24)
    freed, more = (
        stage_memory(model, replace(one, kept_by="megatron_local"))[0].activations_bytes
        for one in (layout, interleaved)
    )
    assert more == pytest.approx((1 + 7 / 24) * freed, rel=1e-9)


def test_weight_gradients_wait_for_32_sbh() -> None:
    # arXiv 2401.10241, Table 1: the memory of W is 32 sbh per layer, that of B sb(34h + 5as).
    assert in_sbh(MODELS[1], kept(MODELS[1]).for_weights) == 32


GB = 1e9


@pytest.mark.parametrize(
    ("billions", "dp", "gigabytes"),
    [
        # arXiv 1910.02054, Figure 1 (7.5B, 64 GPUs) and Table 1: baseline, then stages 1, 2 and 3.
        (7.5, 64, (120, 31.4, 16.6, 1.88)),
        (7.5, 4, (120, 52.5, 41.3, 30)),
        (7.5, 16, (120, 35.6, 21.6, 7.5)),
        (7.5, 1024, (120, 30.1, 15.1, 0.12)),
        (128, 64, (2048, 536, 284, 32)),
        (1000, 64, (16000, 4187, 2218, 250)),
        (1000, 1024, (16000, 4011, 2013, 15.6)),
    ],
)
def test_zero(billions: float, dp: int, gigabytes: tuple[float, ...]) -> None:
    stages = np.arange(4.0)
    parameters, degree = np.full(4, billions * GB), np.full(4, float(dp))
    states = model_states(parameters, degree, stages, precision_of("float16"))
    found = (states.weights + states.gradients + states.optimizer) / GB
    assert found.tolist() == [pytest.approx(size, rel=0.006, abs=0.005) for size in gigabytes]


def test_gpt_2_needs_24_gigabytes_of_states() -> None:
    # Section 3.1: with 1.5 billion parameters "at least 24 GB", 16 bytes each.
    states = model_states(np.array([1.5e9]), np.ones(1), np.zeros(1), precision_of("float16"))
    assert float((states.weights + states.gradients + states.optimizer)[0]) == 24 * GB
