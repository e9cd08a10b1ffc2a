"""Real trainings on a CPU of five small models, as they are and with one thing changed, for `kernelcast compare`."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from kernelcast.collector.ingest.open_traces import opened_traces
from kernelcast.runtime import ModelConfig
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.store import Sample
from tests.collector.ingest.real_runs import (
    LENGTH,
    VOCABULARY,
    Clock,
    D,
    Experts,
    Gelu,
    Norm,
    Training,
    record,
)
from tests.conftest import linear_model

LAYERS, SAMPLES, STEPS = 2, 1, 12
SPREAD, RESIDUAL = 1.5, 0.18
"""By what factor an operator's times may differ; the standard deviation of log(measured / predicted step)."""


class RootMeanSquare(nn.RMSNorm):
    """Of the last dimension."""

    def __init__(self, size: int) -> None:
        super().__init__(size, eps=1e-6)


class SwiGlu(nn.Module):
    """A gated MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(D, width, bias=False), nn.Linear(D, width, bias=False)
        self.down = nn.Linear(width, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    """Of [b, length, D], with `groups` heads of keys and values; the kernel runs `times` times."""

    times, fused = 1, True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.groups, self.rotary = config.attention_heads, config.kv_heads, config.rotary
        self.size = config.head_size
        wide, narrow, bias = self.heads * self.size, self.groups * self.size, not self.rotary
        self.query = nn.Linear(D, wide, bias=bias)
        self.key, self.value = (nn.Linear(D, narrow, bias=bias) for _ in range(2))
        self.out = nn.Linear(wide, D, bias=bias)
        angles = torch.arange(LENGTH)[:, None] * 10_000.0 ** -(torch.arange(0, self.size, 2) / self.size)
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin())

    def forward(self, x: Tensor) -> Tensor:
        b, length, _ = x.shape
        q, k, v = (
            linear(x).view(b, length, -1, self.size).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        if self.rotary:
            q, k = self._rotated(q), self._rotated(k)
        k, v = (one.repeat_interleave(self.heads // self.groups, 1) for one in (k, v))
        found = self._attended(q, k, v)
        for _ in range(self.times - 1):
            found = found + self._attended(q, k, v)
        return self.out(found.transpose(1, 2).flatten(2))

    def _rotated(self, x: Tensor) -> Tensor:
        one, two = x.chunk(2, -1)
        return x * self.cos + torch.cat([-two, one], -1) * self.sin

    def _attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.fused:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = (q @ k.transpose(-2, -1)) * self.size**-0.5
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        return torch.softmax(scores.masked_fill(mask, float("-inf")), -1) @ v


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, norm: type[nn.Module], attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.norm_1, self.norm_2, self.attention, self.mlp = norm(D), norm(D), attention, mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Decoder(nn.Module):
    """Token ids [b, length] to logits [b, length, vocabulary]; layers may run `again` in the backward pass."""

    again = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        norm = Norm if config.norm == "layer_norm" else RootMeanSquare
        self.tokens = nn.Embedding(VOCABULARY, D)
        self.blocks = nn.ModuleList(Block(norm, Attention(config), _mlp(config)) for _ in range(LAYERS))
        self.norm, self.head = norm(D), nn.Linear(D, VOCABULARY, bias=False)
        if config.tied_embeddings:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.head(self.norm(x))


def _mlp(config: ModelConfig) -> nn.Module:
    if config.experts:
        return Experts()
    if config.activation == "swiglu":
        return SwiGlu(config.mlp_size)
    return nn.Sequential(nn.Linear(D, 4 * D), Gelu(), nn.Linear(4 * D, D))


_GPT = {"norm": "layer_norm", "activation": "gelu", "rotary": False}
_LLAMA = {"norm": "rms_norm", "activation": "swiglu", "kv_heads": 2, "mlp_size": 384}
MODELS = {
    name: ModelConfig(
        name=name, hidden_size=D, sequence_length=LENGTH, layers=LAYERS, vocabulary_size=VOCABULARY,
        **{"attention_heads": 16} | fields,
    )
    for name, fields in {
        "GPT": _GPT,
        "llama": _LLAMA,
        "experts": _GPT | {"experts": 4, "experts_per_token": 1},
        "tied": _GPT | {"tied_embeddings": True},
        "wide heads": _LLAMA | {"head_size": 16},
    }.items()
}  # fmt: skip


def _set(kind: type[nn.Module], **values: object) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, kind):
                for name, value in values.items():
                    setattr(module, name, value)

    return change


def _sync(model: nn.Module) -> None:
    """What a host does with values that it waits for."""
    for parameter in model.parameters():
        parameter.grad.norm().item()  # type: ignore[union-attr]
        time.sleep(0.003)


CHANGES: dict[str, tuple[Callable[[nn.Module], None], dict[str, Any]]] = {
    "prior": (lambda model: None, {}),
    "none": (lambda model: None, {}),
    "attention twice": (_set(Attention, times=2), {}),
    "attention not fused": (_set(Attention, fused=False), {}),
    "norms not fused": (_set(Norm, fused=False), {}),
    "GELU not fused": (_set(Gelu, fused=False), {}),
    "layers run again": (_set(Decoder, again=True), {}),
    "data loader": (lambda model: None, {"packings": 150}),
    "sync": (lambda model: None, {"between": _sync}),
    "batch": (lambda model: None, {"samples": 2}),
}


def recorded(folder: Path, config: ModelConfig, *changes: str) -> dict[str, Path]:
    """Train a model by turns with each change; the trace of each."""
    trainings = []
    for name in changes:
        torch.manual_seed(0)
        change, settings = CHANGES[name]
        model = Decoder(config)
        change(model)
        trainings.append(Training(model, Clock(), **{"samples": SAMPLES} | settings))
    return dict(zip(changes, record(folder, *trainings, active=STEPS, quiet=True), strict=True))


def usual_times(path: Path, config: ModelConfig) -> dict[tuple[str, Direction], bytes]:
    """What the operators of a trace took, in µs: of products by their widths, of experts all of a layer together."""
    samples = defaultdict[tuple[str, Direction], list[Sample]](list)
    with opened_traces([path]) as database:
        for sample in database.samples_in_full():
            is_expert = config.experts and set(sample.vector[1:]) == {D, 4 * D}
            samples["grouped_gemm" if is_expert else sample.operator, sample.direction].append(sample)
    found: dict[tuple[str, Direction], bytes] = {}
    for (operator, direction), some in samples.items():
        time_us = np.array([sample.time_us for sample in some])
        is_product = operator in ("gemm", "grouped_gemm")
        gradients = Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT
        halves = gradients if is_product and direction is Direction.BACKWARD else (direction,)
        if operator == "gemm":
            widths = np.array([(*sample.vector[1:], 1) for sample in some], dtype=float)
            of_k, of_n, constant = nnls(widths, time_us)[0] / len(halves)
            found |= {(operator, half): _model((0, of_k, of_n), constant) for half in halves}
        else:
            if len(some) > 1:  # of the experts, whose tokens differ
                calls = 2 * LAYERS * (2 if is_product else 1)
                time_us = time_us @ np.array([[sample.repetition_count / calls] for sample in some])
            of_all = [0] * len(OPERATORS[operator].features)
            found |= {(operator, half): _model(of_all, time_us[0] / len(halves)) for half in halves}
    return found


def _model(weights: Sequence[float], constant: float) -> bytes:
    return linear_model(weights, constant, low=1 / SPREAD, high=SPREAD)
