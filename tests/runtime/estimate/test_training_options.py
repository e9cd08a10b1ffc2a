"""Options of the training software next to the layout: each one's effect on a step, by hand."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import Cluster, Estimate, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.memory.stages import stage_memory

MODEL = ModelConfig(
    name="gpt", hidden_size=64, sequence_length=8, attention_heads=8, layers=8, vocabulary_size=1000
)
# A layer forward: 2 norms, 4 linears, rope, attention, GeLU, 2 additions, 10 µs each.
FORWARD_US = 110.0
LAYOUT = Parallelism(pp=2, tp=1, dp=1, micro_batch=2, micro_batches=4)
FULL = replace(LAYOUT, recompute="full")


def predicted(bundle: Path, layout: Parallelism, model: ModelConfig = MODEL) -> Estimate:
    cluster = Cluster(gpus_per_node=4)
    return Estimator.load(bundle).predict(model=model, parallelism=layout, cluster=cluster, interval=False)


def added_us(one: Estimate, other: Estimate) -> list[float]:
    """What the second takes longer backward, per stage."""
    pairs = zip(one.stages, other.stages, strict=True)
    return [1e6 * (longer.backward_s - shorter.backward_s) for shorter, longer in pairs]


@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize(
    ("options", "again_us"),
    [
        ({"recompute": "full"}, 4 * FORWARD_US),
        ({"recompute": "full", "recompute_layers": 3}, 3 * FORWARD_US),
        ({"recompute": "full", "recompute_layers": 9}, 4 * FORWARD_US),
        # Without the projection down and the addition after it.
        ({"recompute": "full", "recompute_early_stop": True}, 4 * (FORWARD_US - 20)),
        ({"recompute": "full", "recompute_early_stop": True, "recompute_layers": 1}, FORWARD_US - 20),
        ({"recompute": "selective"}, 4 * 10.0),
        ({"recompute": "selective", "recompute_layers": 1}, 4 * 10.0),
        ({"recompute": "selective", "recompute_modules": ("core_attn", "mlp", "layernorm")}, 4 * 60.0),
        ({"recompute": "none", "recompute_layers": 1, "recompute_early_stop": True}, 0.0),
    ],
)
def test_what_is_computed_again(
    make_bundle: Callable[..., Path], zero: int, options: dict[str, Any], again_us: float
) -> None:
    # Collectives next to nothing, so that nothing of them is exposed.
    bundle = make_bundle(dict.fromkeys(("all_gather", "reduce_scatter"), 1e-6))
    layout = replace(LAYOUT, dp=2, zero=zero)
    usual, found = predicted(bundle, layout), predicted(bundle, replace(layout, **options))
    assert added_us(usual, found) == pytest.approx([again_us] * 2, abs=1e-3)
    assert [one.forward_s for one in found.stages] == [one.forward_s for one in usual.stages]
    # The calls listed add up to the passes.
    listed_us = sum(
        1e6 * row.total_s for row in found.operators if row.stage == 0 and row.component == "layer_backward"
    )
    assert listed_us == pytest.approx(1e6 * found.stages[0].backward_s - 20, rel=1e-5)


def test_early_stop_with_tensor_parallelism_spares_the_last_all_reduce(
    make_bundle: Callable[..., Path],
) -> None:
    layout = replace(FULL, tp=2)
    found = predicted(make_bundle(), replace(layout, recompute_early_stop=True))
    whole = predicted(make_bundle(), layout)
    assert added_us(found, whole) == pytest.approx([4 * (20 + 5)] * 2, abs=1e-3)


def test_dropout(make_bundle: Callable[..., Path]) -> None:
    bundle = make_bundle({"dropout": 7.0})
    usual, found = predicted(bundle, LAYOUT), predicted(bundle, replace(LAYOUT, dropout=0.1))
    # Two per layer, one after the embedding; forward and backward are 7 µs each.
    for name in ("forward_s", "backward_s"):
        more = [
            1e6 * (getattr(b, name) - getattr(a, name))
            for a, b in zip(usual.stages, found.stages, strict=True)
        ]
        assert more == pytest.approx([4 * 14 + 7, 4 * 14], abs=1e-3)
    assert found.memory.largest_bytes > usual.memory.largest_bytes
    softmax = replace(MODEL, attention="unfused")
    weights = predicted(bundle, replace(LAYOUT, dropout=0.1), softmax)
    forward = [row for row in weights.operators if row.stage == 1 and row.component == "layer_forward"]
    dropped = [row for row in forward if row.operator == "dropout"]
    assert {row.vector for row in dropped} == {(16, 64)}
    assert sum(row.count for row in dropped) == 4 * 3


def test_dropout_that_was_not_measured_is_answered_by_an_addition(make_bundle: Callable[..., Path]) -> None:
    bundle = make_bundle(without=("dropout",))
    assert not predicted(bundle, LAYOUT).warnings
    [warning] = {
        one.values["source"]
        for one in predicted(bundle, replace(LAYOUT, dropout=0.1)).warnings
        if one.kind == "substitute"
    }
    assert warning == "residual_add"


def test_a_padded_vocabulary(make_bundle: Callable[..., Path]) -> None:
    for multiple, padded in ((128, 1024), (1, 1000), (512, 1024), (1024, 2048)):
        layout = replace(LAYOUT, tp=2, vocabulary_multiple=multiple)
        found = predicted(make_bundle(), layout)
        assert found.padded_vocabulary_size == padded
        [logits] = {
            row.vector for row in found.operators if row.role == "logits" and row.direction == "forward"
        }
        assert logits == (16, 64, padded // 2)
        assert found.stages[1].parameters == found.memory.stages[1].parameters
        assert found.stages[1].parameters - found.stages[0].parameters == 2 * 64


def test_optimizers_take_as_long_as_the_bytes_that_they_move(
    make_bundle: Callable[..., Path], linear_model: Callable[..., bytes]
) -> None:
    # 1 µs for 100 parameters, next to nothing for a layer.
    bundle = make_bundle({"adam": linear_model([0.01, 1e-9], 0.0)})
    usual = predicted(bundle, LAYOUT)
    assert not usual.warnings
    # Bytes per parameter: weights read and written, gradient read, 12; a moment of s bytes read and written, 2 s.
    # One kernel per operation: 48 and 8 s (docs/method.md).
    for kind, states, moved, kept in (
        ("adam_fused", "bfloat16", 20, 8),
        ("adam_fused", "8bit", 16, 6),
        ("adam_foreach", "float32", 80, 12),
        ("adam_loop", "float32", 80, 12),
        ("adam_foreach", "bfloat16", 64, 8),
        ("sgd", "float32", 20, 8),
        ("lion", "bfloat16", 16, 6),
    ):
        layout = replace(LAYOUT, optimizer=kind, optimizer_states=states)  # type: ignore[arg-type]
        found = predicted(bundle, layout)
        for one, other in zip(found.stages, usual.stages, strict=True):
            assert one.optimizer_s == pytest.approx(moved / 28 * other.optimizer_s, rel=1e-3)
        [warning] = found.warnings
        assert str(warning).startswith(f"optimizer {kind} with {states} states: not measured")
        assert found.known.assumed == pytest.approx(
            sum(one.optimizer_s for one in found.stages) / sum(found.times_s.values()), rel=0.01
        )
        # Master weights of 4 bytes and the moments, with 16-bit training.
        memory = stage_memory(MODEL, layout, dtype="bfloat16")[0]
        assert memory.optimizer_bytes == kept * memory.parameters
    alone = stage_memory(MODEL, replace(LAYOUT, optimizer="sgd"), dtype="float32")[0]
    assert alone.optimizer_bytes == 4 * alone.parameters


def test_a_host_that_is_not_ahead(make_bundle: Callable[..., Path]) -> None:
    bundle = make_bundle()
    usual, found = (predicted(bundle, replace(LAYOUT, host_launch_us=us)) for us in (0.0, 15.0))
    ahead = predicted(bundle, replace(LAYOUT, host_launch_us=1.0))
    # A layer's forward pass: 11 kernels of 10 µs, and 4 biases that take no time but are launched.
    assert 1e6 * usual.components.layer_forward_s == pytest.approx(FORWARD_US, abs=1e-3)
    assert 1e6 * found.components.layer_forward_s == pytest.approx(15 * 15, abs=1e-3)
    assert ahead.step_time_s == usual.step_time_s
    assert found.step_time_s > usual.step_time_s
