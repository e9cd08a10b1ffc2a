"""Stages of transformers as plain torch modules, whose allocations are counted."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kernelcast.collector.functions.transformer import causal_attention, rotary_tables, rotate
from kernelcast.runtime import ModelConfig, Parallelism
from kernelcast.runtime.step.chunks import layers_of_chunks


def _norm(model: ModelConfig) -> nn.Module:
    return nn.LayerNorm(model.hidden_size) if model.norm == "layer_norm" else nn.RMSNorm(model.hidden_size)


class Encoder(nn.Module):
    """One transformer block on activations [b, l, d]."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        d = model.hidden_size
        self.heads, self.head_size = model.attention_heads, model.head_size
        self.rotary, self.parallel, self.gated = (
            model.rotary,
            model.parallel_residual,
            model.activation == "swiglu",
        )
        self.attention_norm, self.mlp_norm = _norm(model), _norm(model)
        width, mlp_bias = model.attention_heads * model.head_size, model.biases in ("all", "mlp")
        self.qkv = nn.Linear(d, 3 * width, bias=model.biases in ("all", "attention", "qkv"))
        self.attention_output = nn.Linear(width, d, bias=model.biases in ("all", "attention"))
        self.mlp_up = nn.Linear(d, model.mlp_size * (2 if self.gated else 1), bias=mlp_bias)
        self.mlp_down = nn.Linear(model.mlp_size, d, bias=mlp_bias)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """X [b, l, d] → [b, l, d]; the tables come from rotary_tables."""
        attended = x + self._attention(self.attention_norm(x), cosine, sine)
        mlp_input = x if self.parallel else attended
        return attended + self._mlp(self.mlp_norm(mlp_input))

    def _attention(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, self.head_size)).unbind(2)
        if self.rotary:
            query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        out: Tensor = self.attention_output(causal_attention(query, key, value))
        return out

    def _mlp(self, x: Tensor) -> Tensor:
        hidden = self.mlp_up(x)
        if self.gated:
            gate, up = hidden.chunk(2, dim=-1)
            hidden = F.silu(gate) * up
        else:
            hidden = F.gelu(hidden)
        out: Tensor = self.mlp_down(hidden)
        return out


class Stage(nn.Module):
    """Encoders of one pipeline stage; the first also embeds tokens, the last also gives logits."""

    cosine: Tensor
    sine: Tensor

    def __init__(
        self, model: ModelConfig, *, layers: int, vocabulary_size: int, is_first: bool, is_last: bool
    ) -> None:
        super().__init__()
        d = model.hidden_size
        self.embedding = nn.Embedding(vocabulary_size, d) if is_first else None
        self.layers = nn.ModuleList(Encoder(model) for _ in range(layers))
        self.norm = _norm(model) if is_last else None
        self.logits = nn.Linear(d, vocabulary_size, bias=False) if is_last else None
        cosine, sine = rotary_tables(
            model.sequence_length, model.head_size, device=torch.device("cpu"), dtype=torch.float32
        )
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Token ids [b, l] on the first stage, else activations [b, l, d]; gives activations, or logits [b, l, v]."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        if self.norm is not None and self.logits is not None:
            x = self.logits(self.norm(x))
        return x


class AnyEncoder(Encoder):
    """The layer with grouped queries, heads of any size, biases, dropout and a softmax of its own."""

    def __init__(self, model: ModelConfig, layout: Parallelism) -> None:
        super().__init__(model)
        d, width, kv_width = (
            model.hidden_size,
            model.attention_heads * model.head_size,
            model.kv_heads * model.head_size,
        )
        self.kv_heads, self.kind, self.dropped = model.kv_heads, model.attention, layout.dropout
        self.again = layout.recompute_modules if layout.recompute == "selective" else ()
        self.qkv = nn.Linear(d, width + 2 * kv_width, bias=model.biases in ("all", "attention", "qkv"))
        self.attention_output = nn.Linear(width, d, bias=model.biases in ("all", "attention"))
        mask = torch.ones(model.sequence_length, model.sequence_length, dtype=torch.bool).triu(1)
        self.register_buffer("mask", mask if self.kind != "flash" else None, persistent=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        attended = x + F.dropout(self._attention(self.attention_norm(x), cosine, sine), self.dropped)
        normed = self.mlp_norm(x if self.parallel else attended)
        branch = (
            checkpoint(self._mlp, normed, use_reentrant=False) if "mlp" in self.again else self._mlp(normed)
        )
        return attended + F.dropout(branch, self.dropped)

    def _attention(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        heads = [self.heads, self.kv_heads, self.kv_heads]
        product = self.qkv(x).unflatten(-1, (sum(heads), self.head_size))
        query, key, value = product.split(heads, dim=2)
        if self.rotary:
            query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
        del product
        if self.kind == "flash":
            attended = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=self.kv_heads != self.heads
            )
        else:
            if self.kv_heads != self.heads:
                repeats = self.heads // self.kv_heads
                key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
            if "core_attn" in self.again:
                attended = checkpoint(self._core, query, key, value, use_reentrant=False)
            else:
                attended = self._core(query, key, value)
        return self.attention_output(attended.transpose(1, 2).flatten(2))

    def _core(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # One sample at a time: then heads first is a view, as in frameworks that put the sequence first.
        scores = torch.bmm(query[0], key[0].transpose(1, 2)).masked_fill_(self.mask, -1e4)
        weights = F.dropout(torch.softmax(scores, dim=-1), self.dropped)
        return torch.bmm(weights, value[0])[None]


class AnyStage(Stage):
    """A stage of those layers, with tied embeddings and learned positions where the model has them."""

    def __init__(self, model: ModelConfig, layout: Parallelism, index: int, *, vocabulary_size: int) -> None:
        first, last = index == 0, index == layout.pp - 1
        super().__init__(model, layers=0, vocabulary_size=vocabulary_size, is_first=first, is_last=last)
        count = layers_of_chunks(model.layers, layout)[index]
        self.recomputed = (layout.recompute_layers or count) if layout.recompute == "full" else 0
        self.dropped = layout.dropout
        self.layers = nn.ModuleList(AnyEncoder(model, layout) for _ in range(count))
        if first and last and model.tied_embeddings:
            self.logits.weight = self.embedding.weight
        self.positions = nn.Embedding(model.learned_positions, model.hidden_size) if first else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
            if self.positions.num_embeddings:
                x = x + self.positions.weight[: x.shape[1]]
            x = F.dropout(x, self.dropped)
        for index, layer in enumerate(self.layers):
            if index < self.recomputed:
                x = checkpoint(layer, x, self.cosine, self.sine, use_reentrant=False)
            else:
                x = layer(x, self.cosine, self.sine)
        return x if self.logits is None else self.logits(self.norm(x))
