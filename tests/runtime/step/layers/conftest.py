"""Small models; two of them laid out so that no two sizes on a device are equal by accident."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from kernelcast.runtime import Cluster, ModelConfig, Parallelism
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.request.fields import LAYOUT
from kernelcast.runtime.step.chunks import DENSE, LayerKind
from kernelcast.runtime.step.op import Call
from kernelcast.runtime.step.sizes import Sizes

LLAMA = ModelConfig(
    name="grouped queries, SwiGLU",
    hidden_size=32,
    sequence_length=16,
    attention_heads=8,
    kv_heads=4,
    head_size=6,
    layers=2,
    vocabulary_size=300,
    mlp_size=40,
    norm="rms_norm",
    activation="swiglu",
)
GPT = ModelConfig(
    name="learned positions, softmax of its own",
    hidden_size=8,
    sequence_length=5,
    attention_heads=2,
    layers=2,
    vocabulary_size=100,
    attention="fused_softmax",
    rotary=False,
    learned_positions=5,
)
MIXTURE = ModelConfig(
    name="mixture",
    hidden_size=32,
    sequence_length=16,
    attention_heads=4,
    layers=4,
    vocabulary_size=256,
    mlp_size=40,
    norm="rms_norm",
    activation="swiglu",
    experts=8,
    experts_per_token=2,
    expert_size=20,
    shared_expert_size=24,
    dense_layers=1,
)


EXPERTS = LayerKind(has_experts=True)

Listed = list[tuple[str, tuple[int, ...], int]]


def listed(calls: Iterable[Call]) -> Listed:
    """Operator with its role, shape and count of every call."""
    return [
        (f"{one.operator}/{one.role}" if one.role else one.operator, one.shape, one.count)
        for one in calls
        if one.count
    ]


def collectives(calls: Iterable[Call]) -> Listed:
    """The collectives among calls, grouped by shape, sorted by name."""
    found: dict[tuple[str, tuple[int, ...]], int] = {}
    for name, shape, count in listed(one for one in calls if OPERATORS[one.operator].is_collective):
        found[name, shape] = found.get((name, shape), 0) + count
    return sorted((*one, count) for one, count in found.items())


def sized(model: ModelConfig, *, gpus_per_node: int = 8, kind: LayerKind = DENSE, **fields: Any) -> Sizes:
    """Sizes by fields of a layout on nodes of some devices."""
    layout = Parallelism.unchecked(**fields)
    return Sizes(model=model, kind=kind, layout=layout, cluster=Cluster(gpus_per_node=gpus_per_node))


def changed(s: Sizes, **fields: Any) -> Sizes:
    """The same with other fields of the layout, of the model, or of its own."""
    of_layout = {name: value for name, value in fields.items() if name in LAYOUT}
    of_model = {name: value for name, value in fields.items() if hasattr(s.model, name)}
    own = {name: value for name, value in fields.items() if name not in of_layout | of_model}
    layout = Parallelism.unchecked(s.layout, **of_layout)
    return replace(s, layout=layout, model=replace(s.model, **of_model), **own)


@pytest.fixture
def llama() -> Sizes:
    """On one of two devices, 3 samples: 48 tokens, 4 heads and 2 key-value heads of 6, MLP 20, vocabulary 512 / 2."""
    return sized(LLAMA, tp=2, micro_batch=3)


@pytest.fixture
def llama_cut(llama: Sizes) -> Sizes:
    """The same with sequence parallelism: norms and residuals hold 8 tokens of a sample, 24 in all."""
    return changed(llama, sequence_parallel=True)


@pytest.fixture
def gpt() -> Sizes:
    """On one device, 3 samples: 15 tokens, 2 heads of 4, MLP 32, vocabulary 128."""
    return sized(GPT, micro_batch=3)
