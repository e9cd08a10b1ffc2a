"""Jobs of the paper and of Llama, and calls of theirs by name."""

from collections.abc import Iterable
from typing import Any

from kernelcast.runtime import Cluster, ModelConfig, Parallelism
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.step.chunks import StageKind
from kernelcast.runtime.step.decomposition import Block, Decomposition, decompose
from kernelcast.runtime.step.op import ONCE_PER_UPDATE, Call, Calls, Component

GPT_20B: dict[str, Any] = {
    "name": "gpt-20b",
    "hidden_size": 6144,
    "sequence_length": 2048,
    "attention_heads": 64,
    "layers": 44,
    "vocabulary_size": 50257,
    "attention": "fused_softmax",
    "parallel_residual": True,
}
LLAMA_3_8B: dict[str, Any] = {
    "name": "llama-3-8b",
    "hidden_size": 4096,
    "sequence_length": 4096,
    "attention_heads": 32,
    "kv_heads": 8,
    "layers": 32,
    "vocabulary_size": 128256,
    "mlp_size": 14336,
    "norm": "rms_norm",
    "activation": "swiglu",
}
PAPER = {"pp": 4, "tp": 4, "dp": 8, "micro_batch": 4, "micro_batches": 16, "layer_split": "paper"}


def taken_apart(
    model: dict[str, Any],
    layout: dict[str, Any],
    *,
    gpus_per_node: int = 4,
    bucket_entries: int = 1_260_000_000,
) -> Decomposition:
    return decompose(
        model=ModelConfig(**model),
        parallelism=Parallelism(**layout),
        cluster=Cluster(gpus_per_node=gpus_per_node),
        bucket_entries=bucket_entries,
    )


def ahead(block: Block) -> Calls:
    """Calls of a block's forward pass that overlap nothing."""
    return block.passes.forward.calls


def back(block: Block) -> Calls:
    """Calls of its backward pass that overlap nothing, and then what that runs again."""
    return block.passes.backward.calls + block.recomputed.calls


def updated(parts: Decomposition, stage: StageKind, *components: Component) -> Calls:
    """Calls of a stage's update, of some components alone if any are given."""
    ops = parts.update(stage)
    return tuple(call for one in ops for call in one.forward() if not components or one.name in components)


def named(call: Call) -> str:
    """The operator, with its role where it has several."""
    return f"{call.operator}/{call.role}" if call.role else call.operator


def listed(calls: Iterable[Call]) -> list[Call]:
    """The calls that the paper's Table I lists; the others are in answers/test_left_out.py."""
    return [call for call in calls if not OPERATORS[call.operator].is_optional]


def vectors(parts: Decomposition) -> dict[str, tuple[int, ...]]:
    """Operators with one vector wherever they are called, without updates and the loss's all-reduces."""
    loss = set(ahead(parts.last))
    found = {
        (named(call), call.shape)
        for stage in range(len(parts.stages))
        for component, call in parts.calls(stage)
        if component not in ONCE_PER_UPDATE
        if call in listed([call]) and not (call.operator == "all_reduce" and call in loss)
    }
    assert len(dict(found)) == len(found)
    return dict(found)


def counts(parts: Decomposition, stage: int, *components: Component) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for component, call in parts.calls(stage):
        if component in components and call in listed([call]):
            key = named(call), call.direction.value
            found[key] = found.get(key, 0) + call.count
    return found


def by_name(calls: Iterable[Call], *names: str) -> list[tuple[str, tuple[int, ...], int]]:
    """Name, vector and number of the calls of some operators, of each vector together, sorted."""
    found: dict[tuple[str, tuple[int, ...]], int] = {}
    for call in calls:
        if named(call) in names:
            found[named(call), call.shape] = found.get((named(call), call.shape), 0) + call.count
    return sorted((*one, count) for one, count in found.items())
