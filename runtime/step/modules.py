"""Facts where modules differ: what a framework's keep between the passes and gather, and recipes of 8 and 4 bit.

Recipes say which product runs, what is cast, which copies are kept: what TransformerEngine does, and torchao for rows.
Bytes are per entry, scales included: one per tensor or row weighs nothing, a block of 128 has 4 bytes, one of 32
(MXFP8) or of 16 (NVFP4) has 1.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, get_args

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.request.fields import Float8Recipe, FrozenWeights, ModuleKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Facts about the modules that a model is made of.

    - `copies_attention_inputs`: attention takes queries, keys and values as tensors of their own, and the QKV product
      is freed; else the values are a view that keeps all of it.
    - `fuses_gate`: a gated activation is one kernel, which makes the gate after SiLU again in its backward pass.
    - `fuses_norms`: a norm that one linear alone reads is part of that linear: selective checkpointing of norms
      leaves it out; where the linear runs again it does too.
    - `accumulates_in_products`: the products that make weight gradients add them to the accumulated ones. A gradient of
      its own then exists only as what autograd is given: one unused tensor for every shape of a layer's weights,
      which stays.
    - `kept_results`: tensors of the experts' results that are kept where they are weighted and summed; probabilities
      that are applied in the activation need none.
    - `reuses_loss`: a plain loss keeps probabilities in fp32 but not the logits, and writes its gradient over them.
    - `caches_float8`: linears in 8 bit save their inputs in 8 bit, and 8-bit copies of weights stay from update to
      update. Else inputs are saved as they come, and both are cast again where they are read.
    - `has_engine`: TransformerEngine has a cuBLAS workspace of its own.
    - `keeps_gathered`: products whose input is gathered along the sequence keep it whole; else a shard of it, which is
      gathered again.
    - `gathered_recipes`: those with which a device casts its shard of the sequence, and gathers what it cast; with the
      others the training's type is gathered, and cast whole.
    - `separates_linears`: queries, keys and values, gate and up are products of their own, and the gradients of what
      they read are added; else one product each.
    - `sharded_loss_copies`: tensors in fp32 that a plain loss over a cut vocabulary has on top of what it keeps.
    - `frees_outputs`: what a stage sent is freed (`deallocate_pipeline_outputs`); else it stays for its backward pass.
    - `receives_all`: a stage has a buffer for what it receives of every micro-batch, forward and backward.
    - `separates_masters`: ZeRO-3 shards weights in the training's type next to fp32 masters; else the shards are the
      masters, and what is gathered is cast.
    """

    copies_attention_inputs: bool = False
    fuses_gate: bool = False
    fuses_norms: bool = False
    accumulates_in_products: bool = False
    kept_results: int = 2
    reuses_loss: bool = False
    caches_float8: bool = False
    has_engine: bool = False
    keeps_gathered: bool = False
    gathered_recipes: frozenset[Float8Recipe] = frozenset()
    separates_linears: bool = False
    sharded_loss_copies: int = 2
    frees_outputs: bool = False
    receives_all: bool = False
    separates_masters: bool = False


TORCH = Modules()
MODULES: Mapping[ModuleKind, Modules] = {
    # A model written with torch's own modules, as those that `validate run` trains: autograd keeps all it can need,
    # of experts' results the factor of a product and the source of `index_add`.
    "torch": TORCH,
    # The same cut by DTensor: autograd keeps what `PrepareModuleInput` gathers. The backward pass of `loss_parallel`
    # holds (zeros + exp(x)) and both of its terms next to x (_nll_loss_and_log_softmax_backward). torchao's
    # Float8ColwiseParallel and Float8RowwiseParallel cast inputs and gradients before they are redistributed. Each
    # stage (`PipelineStage`) makes its `_RecvInfo` for all micro-batches.
    "torchtitan": Modules(
        keeps_gathered=True,
        gathered_recipes=frozenset({"tensorwise"}),
        separates_linears=True,
        sharded_loss_copies=3,
        receives_all=True,
    ),
    # Megatron-core with TransformerEngine: get_qkv_layout makes q, k, v contiguous where they are no layout that
    # its kernels know, SwiGLUFunction, TELayerNormColumnParallelLinear (of queries, keys and values, a dense MLP, and
    # behind the norms of low ranks), gradient_accumulation_fusion with get_dummy_wgrad, gather_along_first_dim with a
    # quantizer, and VocabParallelCrossEntropy (docs/memory.md, Modules).
    "megatron": Modules(
        copies_attention_inputs=True,
        fuses_gate=True,
        fuses_norms=True,
        accumulates_in_products=True,
        kept_results=0,
        reuses_loss=True,
        caches_float8=True,
        has_engine=True,
        gathered_recipes=frozenset(get_args(Float8Recipe)) - {"none", "rowwise"},
        frees_outputs=True,
        separates_masters=True,
    ),
    # Megatron-core without TransformerEngine (--transformer-impl local).
    "megatron_local": Modules(fuses_gate=True, reuses_loss=True, frees_outputs=True, separates_masters=True),
}


class Recipe(NamedTuple):
    """One recipe.

    - `units`: the peak of the device table that its products run at;
    - `product`: the operator of a product, `gemm_` or `grouped_gemm_` before it;
    - `entry_bytes`: of one cast copy;
    - `cast_bytes`: read and written where an activation or a gradient is cast, both copies together;
    - `one_copy_bytes`: the same where no weight gradient reads the transposed copy, as the weight is frozen;
    - `weight_bytes`: the same where a weight is cast after an update;
    - `copies`: of a weight, as it is and transposed;
    - `scales_blocks`: along rows and along columns entries have other scales, so each copy is made from 16 bit. With a
      scale per tensor the transposed copy is made from the other.
    """

    units: str
    product: str
    entry_bytes: float
    cast_bytes: float
    one_copy_bytes: float
    weight_bytes: float
    copies: int = 2

    @property
    def scales_blocks(self) -> bool:
        return self.entry_bytes % 1 > 0


FROZEN_BYTES: Mapping[FrozenWeights, float] = MappingProxyType(
    {"nf4": 0.5 + 4 / 64, "nf4_double": 0.5 + 1 / 64 + 4 / (64 * 256)}
)
"""Bytes per entry of a frozen weight in 4 bit with its scales (arXiv 2305.14314, section 3: one per 64 entries; double
quantization keeps these in 8 bit, with a scale of their own per 256)."""

_BLOCK, _MX, _NV = 1 + 4 / 128, 1 + 1 / 32, 0.5 + 1 / 16

RECIPES: Mapping[Float8Recipe, Recipe] = MappingProxyType(
    {
        # Largest entry of the tensor (2 bytes read), then read again and written twice.
        "tensorwise": Recipe("float8", "float8_tensor", 1, 6, 5, 6),
        # Scales of earlier steps: no pass for the largest entry.
        "delayed": Recipe("float8", "float8_tensor", 1, 4, 3, 4),
        # Rows and columns have scales of their own: two passes over each.
        "rowwise": Recipe("float8", "float8_row", 1, 10, 5, 10),
        "blockwise": Recipe("float8", "float8_block", _BLOCK, 2 + 2 * _BLOCK, 2 + _BLOCK, 2 + 2 * _BLOCK),
        # Quantised along rows and along columns from 16 bit.
        "mxfp8": Recipe("mxfp8", "float8_tensor", _MX, 2 + 2 * _MX, 2 + _MX, 2 + 2 * _MX),
        # The largest entry; rows; columns after a Hadamard transform, which reads 16 bit again.
        "nvfp4": Recipe("nvfp4", "float4_block", _NV, 6 + 2 * _NV, 4 + _NV, 4 + 2 * _NV),
        # Both copies in one pass where nothing is transformed (NVTE_NVFP4_DISABLE_RHT).
        "nvfp4_plain": Recipe("nvfp4", "float4_block", _NV, 4 + 2 * _NV, 4 + _NV, 4 + 2 * _NV),
    }
)
