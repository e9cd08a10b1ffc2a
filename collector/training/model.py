"""A decoder-only transformer that trains for real, cut into chunks of a pipeline and shards of a tensor-parallel group.

It runs the tensor functions that the benches measure, in the order of docs/method.md, A step. Weights depend on their
name and the seed alone: the model is the same in every layout.
"""

import zlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from kernelcast.collector.functions.transformer import (
    add_bias,
    causal_attention,
    masked_attention,
    rotary_tables,
    rotate,
    split_qkv,
    swiglu,
    windowed_mask,
)
from kernelcast.collector.functions.vocabulary_parallel import (
    local_rows,
    mask_rows,
    vocabulary_parallel_cross_entropy,
    vocabulary_parallel_embedding,
)
from kernelcast.collector.training.exchanges import enter, heads_for_tokens, leave, tokens_for_heads
from kernelcast.collector.training.experts import Experts
from kernelcast.collector.training.groups import Shard
from kernelcast.collector.training.marks import LAYER, marked, operator_mark
from kernelcast.runtime import ModelConfig
from kernelcast.runtime.request.fields import Recompute
from kernelcast.runtime.step.kinds import kinds_of
from kernelcast.runtime.step.layers.attention import has_output_bias, has_qkv_bias
from kernelcast.runtime.step.layers.mlp import has_bias as has_mlp_bias
from kernelcast.runtime.step.layers.mlp import up_product
from kernelcast.runtime.step.sizes import Sizes

_SCALE = 0.02  # of random weights, as GPT-2 has it


class _Weights:
    """Random tensors by name."""

    def __init__(self, seed: int, prefix: str) -> None:
        self._seed, self._prefix = seed, prefix

    def __call__(self, name: str, *size: int) -> Tensor:
        """The whole tensor of a name; the caller cuts out its shard."""
        generator = torch.Generator()
        generator.manual_seed(self._seed ^ zlib.crc32(f"{self._prefix}{name}".encode()))
        return torch.randn(size, generator=generator) * _SCALE


def _parameter(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value.contiguous().clone())


def checkpointed(call: Callable[..., Tensor], *inputs: Tensor, when: bool) -> Tensor:
    """`call(*inputs)`; if `when` is true, with activation checkpointing: the backward pass runs all of it again."""
    if not when:
        return call(*inputs)
    # Frameworks run all of it again; torch by default stops after the last tensor that is needed.
    with set_checkpoint_early_stop(False):
        # Without dropout there is no random state to restore.
        result: Tensor = checkpoint(call, *inputs, use_reentrant=False, preserve_rng_state=False)
    return result


class _Norm(nn.Module):
    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.operator, size = model.norm, model.hidden_size
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if model.norm == "layer_norm" else None

    def forward(self, x: Tensor) -> Tensor:
        with operator_mark(self.operator):
            if self.bias is None:
                return F.rms_norm(x, self.weight.shape, self.weight)
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias)


class _ColumnParallel(nn.Module):
    """Rows of the weight [out / tp, in] on every device; the input is the same on all of them."""

    def __init__(self, role: str, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.role = role
        self.weight = _parameter(weight)
        self.bias = None if bias is None else _parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.with_bias(self.product(x))

    def product(self, x: Tensor) -> Tensor:
        """The product without bias."""
        with operator_mark("gemm", self.role):
            return F.linear(x, self.weight)

    def with_bias(self, x: Tensor) -> Tensor:
        """Add the bias, where the layer has one."""
        if self.bias is None:
            return x
        with operator_mark("bias_add"):
            return add_bias(x, self.bias)


class _RowParallel(_ColumnParallel):
    """Columns of the weight [out, in / tp] on every device; `product` is partial and is summed over the group."""

    def __init__(self, role: str, weight: Tensor, bias: Tensor | None, shard: Shard) -> None:
        super().__init__(role, weight, bias)
        self.group = shard.group

    def forward(self, x: Tensor) -> Tensor:
        return self.with_bias(leave(self.product(x), self.group))


class Block(nn.Module):
    """One transformer layer on activations [b, l, d], built from its description (runtime/step/layers)."""

    mask: Tensor

    def __init__(
        self,
        sizes: Sizes,
        shard: Shard,
        recompute: Recompute,
        weights: Callable[..., Tensor],
        *,
        loss_scale: float = 1.0,
    ) -> None:
        super().__init__()
        model = sizes.model
        d, width = model.hidden_size, model.attention_heads * model.head_size
        self.sizes, self.group, self.recompute = sizes, shard.group, recompute
        self.context = shard.context
        self.attention_norm, self.mlp_norm = _Norm(model), _Norm(model)
        kv_width = model.kv_heads * model.head_size
        qkv_rows = {"query": width, "key": kv_width, "value": kv_width}

        def rows(sizes: dict[str, int], *columns: int, suffix: str) -> Tensor:
            return torch.cat([weights(name + suffix, n, *columns)[shard.of(n)] for name, n in sizes.items()])

        if sizes.kind.window:
            length = model.sequence_length
            mask = windowed_mask(length, length, sizes.kind.window, device=torch.device("cpu"))
            self.register_buffer("mask", mask, persistent=False)
        self.qkv = _ColumnParallel(
            "qkv",
            rows(qkv_rows, d, suffix=".weight"),
            rows(qkv_rows, suffix=".bias") if has_qkv_bias(sizes) else None,
        )
        self.attention_output = _RowParallel(
            "attention_output",
            weights("attention_output.weight", d, width)[:, shard.of(width)],
            weights("attention_output.bias", d) if has_output_bias(sizes) else None,
            shard,
        )
        mlp_size, has_bias = model.mlp_size, has_mlp_bias(sizes)
        self.experts: Experts | None = None
        if sizes.kind.has_experts:
            self.experts = Experts(sizes, shard.experts, weights, loss_scale=loss_scale)
            return
        up_rows = dict.fromkeys(("gate", "up")[-sizes.branches :], mlp_size)
        self.mlp_up = _ColumnParallel(
            up_product(sizes),
            rows(up_rows, d, suffix=".weight"),
            rows(up_rows, suffix=".bias") if has_bias else None,
        )
        self.mlp_down = _RowParallel(
            "mlp_down",
            weights("mlp_down.weight", d, mlp_size)[:, shard.of(mlp_size)],
            weights("mlp_down.bias", d) if has_bias else None,
            shard,
        )

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """X [b, l, d] → [b, l, d]; the tables come from rotary_tables."""
        with marked(LAYER):
            if self.sizes.model.parallel_residual:
                return self._parallel(x, cosine, sine)
            x = _residual(x, self.attention_output(self._attention(x, cosine, sine)))
            if self.experts is not None:
                return _residual(x, self.experts(self.mlp_norm(x)))
            return _residual(x, self.mlp_down(self._mlp(x)))

    def _parallel(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Both branches read x; one all-reduce sums both products."""
        attended, hidden = self._attention(x, cosine, sine), self._mlp(x)
        if self.group is None:
            return _residual(_residual(x, self.attention_output(attended)), self.mlp_down(hidden))
        branches = _residual(self.attention_output.product(attended), self.mlp_down.product(hidden))
        branches = self.attention_output.with_bias(leave(branches, self.group))
        return _residual(x, self.mlp_down.with_bias(branches))

    def _attention(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        sizes = self.sizes
        qkv = self.qkv(enter(self.attention_norm(x), self.group))
        with operator_mark("qkv_split"):
            query, key, value = split_qkv(qkv, heads=int(sizes.heads), kv_heads=int(sizes.kv_heads))
        if sizes.rotates:
            with operator_mark("rope"):
                query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        parts, group = self.context.parts, self.context.group
        if group is not None:
            query, key, value = heads_for_tokens(query, key, value, parts, group)
        out = checkpointed(self._attended, query, key, value, when=self.recompute == "selective")
        return out if group is None else tokens_for_heads(out, parts, group)

    def _attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.sizes.kind.window:
            with operator_mark("attention_block"):
                return masked_attention(query, key, value, self.mask)
        if self.sizes.model.attention == "flash":
            with operator_mark("flash_attention"):
                return causal_attention(query, key, value)
        return _unfused_attention(query, key, value)

    def _mlp(self, x: Tensor) -> Tensor:
        hidden = self.mlp_up(enter(self.mlp_norm(x), self.group))
        with operator_mark(self.sizes.model.activation):
            return swiglu(hidden) if self.sizes.is_gated else F.gelu(hidden)


def _residual(x: Tensor, branch: Tensor) -> Tensor:
    with operator_mark("residual_add"):
        return x + branch


def _unfused_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Products, mask and softmax as operators of their own; shapes as `causal_attention`."""
    b, length, heads, head_size = query.shape
    repeats = heads // key.shape[2]

    def by_head(x: Tensor) -> Tensor:
        x = x if x.shape[2] == heads else x.repeat_interleave(repeats, dim=2)
        return x.transpose(1, 2).reshape(b * heads, length, head_size)

    with operator_mark("attention_heads"):
        query, key, value = by_head(query) * head_size**-0.5, by_head(key), by_head(value)
    with operator_mark("batched_gemm", "attention_scores"):
        scores = torch.bmm(query, key.transpose(1, 2)).view(b, heads, length, length)
    with operator_mark("causal_mask_fill"):
        mask = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
    with operator_mark("softmax"):
        scores = torch.softmax(scores, dim=-1)
    with operator_mark("batched_gemm", "attention_values"):
        out = torch.bmm(scores.flatten(0, 1), value)
    with operator_mark("attention_heads"):
        return out.view(b, heads, length, head_size).transpose(1, 2).flatten(2)


class Chunk(nn.Module):
    """Layers of one chunk of the pipeline; the first chunk also embeds tokens, the last also computes logits."""

    cosine: Tensor
    sine: Tensor

    def __init__(
        self,
        model: ModelConfig,
        *,
        first_layer: int,
        layers: int,
        vocabulary_size: int,
        is_first: bool,
        is_last: bool,
        shard: Shard,
        recompute: Recompute = "none",
        loss_scale: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.shard, self.recompute = shard, recompute
        weights, rows = _Weights(seed, ""), shard.of(vocabulary_size)
        size = (vocabulary_size, model.hidden_size)
        kinds = kinds_of(model)
        sizes = Sizes.alone(
            model,
            tp=shard.parts,
            cp=shard.context.parts,
            ep=shard.experts.parts,
            context_exchange="all_to_all",
        )
        self.embedding = _parameter(weights("embedding", *size)[rows]) if is_first else None
        self.layers = nn.ModuleList(
            Block(
                sizes.of_kind(kinds.distinct[kinds.of_layer[number]]),
                shard,
                recompute,
                _Weights(seed, f"layer {number}."),
                loss_scale=loss_scale,
            )
            for number in range(first_layer, first_layer + layers)
        )
        self.norm = _Norm(model) if is_last else None
        self.logits = _ColumnParallel("logits", weights("logits", *size)[rows], None) if is_last else None
        cosine, sine = rotary_tables(
            model.sequence_length, model.head_size, device=torch.device("cpu"), dtype=torch.float32
        )
        own = shard.context.of(model.sequence_length)
        self.register_buffer("cosine", cosine[:, own], persistent=False)
        self.register_buffer("sine", sine[:, own], persistent=False)
        self.first_row = rows.start

    @property
    def replicated(self) -> list[nn.Parameter]:
        """Parameters that every device of the tensor-parallel group has whole."""
        found = [p for module in self.modules() if isinstance(module, _Norm) for p in module.parameters()]
        return found + [
            module.bias
            for module in self.modules()
            if isinstance(module, _RowParallel) and module.bias is not None
        ]

    @property
    def experts(self) -> list[nn.Parameter]:
        """Parameters of this device's experts."""
        return [p for module in self.modules() if isinstance(module, Experts) for p in module.own]

    def forward(self, x: Tensor) -> Tensor:
        """Token ids [b, l] in the first chunk, else activations [b, l, d] → activations, or logits [b, l, v / tp]."""
        group = self.shard.group
        if self.embedding is not None:
            x = leave(self._embedded(x), group)
        for layer in self.layers:
            x = checkpointed(layer, x, self.cosine, self.sine, when=self.recompute == "full")
        if self.norm is not None and self.logits is not None:
            x = self.logits(enter(self.norm(x), group))
        return x

    def _embedded(self, ids: Tensor) -> Tensor:
        """`vocabulary_parallel_embedding` without its sum, with marks around its two operators."""
        assert self.embedding is not None
        if self.shard.group is None:
            with operator_mark("embedding"):
                return vocabulary_parallel_embedding(ids, self.embedding, None)
        with operator_mark("embedding_mask"):
            local, elsewhere = local_rows(ids, self.first_row, self.embedding.shape[0])
        with operator_mark("embedding"):
            x = vocabulary_parallel_embedding(local, self.embedding, None)
        with operator_mark("embedding_mask"):
            return mask_rows(x, elsewhere)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of logits [b, l, v / tp] against targets [b, l]."""
        with operator_mark("cross_entropy"):
            return vocabulary_parallel_cross_entropy(logits, targets, self.first_row, self.shard.group).mean()
