"""A decoder-only transformer that trains for real, cut into pipeline stages: what predictions are checked against.

It runs the tensor functions of layers.py, in the order of docs/method.md, A step. One device per stage (no tensor
parallelism).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelcast.collector.layers import causal_attention, rotary_tables, rotate
from kernelcast.runtime import ModelConfig
from kernelcast.runtime.errors import UsageError


def require_trainable(model: ModelConfig) -> None:
    """Refuse what this model definition does not cover.

    Raises:
        UsageError: the field, what was found, what is trained.
    """
    if model.attention != "flash":
        raise UsageError(
            f"model {model.name}: attention is {model.attention!r}, real steps train 'flash' only"
        )
    if model.kv_heads != model.attention_heads:
        raise UsageError(
            f"model {model.name}: kv_heads is {model.kv_heads}, real steps train {model.attention_heads} "
            "(as many as attention_heads) only"
        )
    if model.rotary and model.head_size % 2:
        raise UsageError(
            f"model {model.name}: head_size is {model.head_size}, rotary position embedding needs an even number"
        )
    if model.learned_positions:
        raise UsageError(
            f"model {model.name}: learned_positions is {model.learned_positions}, real steps train 0 only"
        )
    if model.tied_embeddings:
        raise UsageError(f"model {model.name}: tied_embeddings is true, real steps train false only")


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
        """X [b, l, d] → [b, l, d]; the tables are those of rotary_tables."""
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
        self, model: ModelConfig, *, encoders: int, vocabulary_size: int, is_first: bool, is_last: bool
    ) -> None:
        super().__init__()
        d = model.hidden_size
        self.embedding = nn.Embedding(vocabulary_size, d) if is_first else None
        self.encoders = nn.ModuleList(Encoder(model) for _ in range(encoders))
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
        for encoder in self.encoders:
            x = encoder(x, self.cosine, self.sine)
        if self.norm is not None and self.logits is not None:
            x = self.logits(self.norm(x))
        return x


def build_stage(model: ModelConfig, *, encoders: Sequence[int], stage: int, vocabulary_size: int) -> Stage:
    """Stage number `stage` of a model cut into `encoders` per stage; `vocabulary_size` is the padded one."""
    return Stage(
        model,
        encoders=encoders[stage],
        vocabulary_size=vocabulary_size,
        is_first=stage == 0,
        is_last=stage == len(encoders) - 1,
    )
