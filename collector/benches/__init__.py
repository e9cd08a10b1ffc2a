"""One runnable bench per operator of runtime/operators.py: the torch calls a training framework makes, and its inputs.

A bench is built from a `Shape`; the same shape gives the workload vector, so a measurement cannot carry a vector that
it did not run.
"""

from collections.abc import Mapping
from types import MappingProxyType

from kernelcast.collector.benches import attention, elementwise, ends, linears, norms, optimizer
from kernelcast.collector.benches.bench import Bench, Builder, Place, UnsupportedError

__all__ = ["BENCHES", "Bench", "Builder", "Place", "UnsupportedError"]

BENCHES: Mapping[str, Builder] = MappingProxyType(
    {
        "embedding": ends.embedding,
        "layer_norm": norms.layer_norm,
        "rms_norm": norms.rms_norm,
        "qkv_linear": linears.qkv_linear,
        "rope": attention.rope,
        "attention_scores": attention.attention_scores,
        "causal_mask_fill": attention.causal_mask_fill,
        "softmax": attention.softmax,
        "fused_causal_softmax": attention.fused_causal_softmax,
        "attention_values": attention.attention_values,
        "flash_attention": attention.flash_attention,
        "attention_output_linear": linears.attention_output_linear,
        "mlp_up_linear": linears.mlp_up_linear,
        "gelu": elementwise.gelu,
        "swiglu": elementwise.swiglu,
        "mlp_gate_up_linear": linears.mlp_gate_up_linear,
        "mlp_down_linear": linears.mlp_down_linear,
        "residual_add": elementwise.residual_add,
        "logits_linear": linears.logits_linear,
        "cross_entropy": ends.cross_entropy,
        "optimizer_first_stage": optimizer.optimizer("first"),
        "optimizer_middle_stage": optimizer.optimizer("middle"),
        "optimizer_last_stage": optimizer.optimizer("last"),
        "bias_add": linears.bias_add,
        "qkv_split": attention.qkv_split,
        "embedding_mask": ends.embedding_mask,
        "grouped_rope": attention.grouped_rope,
        "grouped_flash_attention": attention.grouped_flash_attention,
        "gradient_zero": optimizer.gradient_zero,
        "gradient_clip": optimizer.gradient_clip,
    }
)
"""Builder of every operator that one device runs alone; collectives are in ../communication."""
