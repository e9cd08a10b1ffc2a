"""Small models; two of them laid out so that no two sizes on a device are equal by accident."""

import pytest

from kernelcast.runtime import ModelConfig
from kernelcast.runtime.step.calls import Calls
from kernelcast.runtime.step.groups import Group
from kernelcast.runtime.step.layers.sizes import Sizes

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


def listed(calls: Calls) -> list[tuple[str, tuple[int, ...], int]]:
    """Operator with its role, shape and count of every call."""
    return [
        (f"{one.operator}/{one.role}" if one.role else one.operator, one.shape, one.count)
        for one in calls
        if one.count
    ]


@pytest.fixture
def llama() -> Sizes:
    """On one of two devices, 3 samples: 48 tokens, 4 heads and 2 key-value heads of 6, MLP 20, vocabulary 512 / 2."""
    return Sizes(model=LLAMA, tp=2, micro_batch=3, group=Group(nodes=1, gpus_per_node=2))


@pytest.fixture
def llama_cut() -> Sizes:
    """The same with sequence parallelism: norms and residuals hold 8 tokens of a sample, 24 in all."""
    return Sizes(model=LLAMA, tp=2, micro_batch=3, sequence_parallel=1, group=Group(nodes=1, gpus_per_node=2))


@pytest.fixture
def gpt() -> Sizes:
    """On one device, 3 samples: 15 tokens, 2 heads of 4, MLP 32, vocabulary 128."""
    return Sizes(model=GPT, micro_batch=3)
