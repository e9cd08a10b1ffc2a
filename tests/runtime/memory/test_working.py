"""The peak memory of a backward pass, by hand, where the embedding makes it."""

from typing import Any

import pytest

from kernelcast.runtime import ModelConfig, Parallelism
from kernelcast.runtime.memory.stages import stage_memory

# A vocabulary's matrix far larger than anything else: 4096 · 32 of 2 bytes; 16 tokens, an MLP of 8.
MODEL = ModelConfig(
    name="wide vocabulary",
    hidden_size=32,
    sequence_length=16,
    attention_heads=4,
    kv_heads=2,
    layers=6,
    vocabulary_size=4096,
    mlp_size=8,
    norm="rms_norm",
    activation="swiglu",
)
MATRIX, INPUT, TABLES, IDS = 2 * 4096 * 32, 2 * 16 * 32, 2 * 4 * 16 * 8, 8 * 16


@pytest.mark.parametrize(
    ("layout", "freed"),
    [
        # Recomputed layers keep their input: three inputs have been freed.
        ({"layer_counts": (3, 3)}, 3 * INPUT),
        # Of its two chunks, of one layer and of two, the first has been.
        ({"schedule": "interleaved", "virtual_stages": 2, "layer_counts": (1, 2, 2, 1)}, INPUT),
        ({"schedule": "interleaved", "virtual_stages": 2, "layer_counts": (2, 1, 2, 1)}, 2 * INPUT),
    ],
)
def test_the_gradient_of_the_embedding_once_its_chunk_is_freed(layout: dict[str, Any], freed: int) -> None:
    given: dict[str, Any] = {"pp": 2, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 2}
    first, _ = stage_memory(MODEL, Parallelism(**given, recompute="full", **layout), dtype="bfloat16")
    # Its weights' gradient and that of the first layer's input; the ids of both micro-batches.
    assert first.working_bytes == MATRIX + INPUT - freed + TABLES + 2 * IDS


def test_layers_that_are_kept_free_all_they_kept() -> None:
    given: dict[str, Any] = {"pp": 2, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 2}
    first, _ = stage_memory(
        MODEL, Parallelism(**given, layer_counts=(2, 4), kept_by="megatron"), dtype="bfloat16"
    )
    # Input, norm, input of the second norm, norm: 4 of 32. Queries, keys, values, output: 64 + 32. Gate, up and
    # product: 3 · 8. Two statistics of norms and one per head in 4 bytes.
    kept = 2 * 16 * (4 * 32 + 96 + 24) + 4 * 16 * (2 + 4)
    # An unused gradient of every shape: QKV, attention output, gate with up, down.
    unused = 2 * 32 * (64 + 32 + 16 + 8)
    assert first.activations_bytes == 2 * 2 * kept
    assert first.working_bytes == MATRIX + INPUT - 2 * kept + unused + TABLES + 2 * IDS


def test_the_output_product_with_a_cut_sequence() -> None:
    given: dict[str, Any] = {"pp": 1, "tp": 2, "dp": 1, "micro_batch": 1, "micro_batches": 1}
    layout = Parallelism(**given, sequence_parallel=True, loss="in_place")
    [stage] = stage_memory(MODEL, layout, dtype="bfloat16")
    # Half of the matrix's gradient, that of half of the tokens; its input and the input's gradient are gathered.
    assert stage.working_bytes == MATRIX // 2 + INPUT // 2 + 2 * INPUT + TABLES + 2 * IDS


def test_late_weight_gradients_wait_with_inputs_and_gradients() -> None:
    given: dict[str, Any] = {"pp": 3, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 6}
    plain, late = (
        stage_memory(MODEL, Parallelism(**given, layer_counts=(2, 2, 2), schedule=schedule), dtype="bfloat16")
        for schedule in ("1f1b", "zero_bubble")
    )
    # Of every product its input and the gradient of its output: QKV 32 and 64, attention's output 32 and 32; gate with
    # up 32 and 16, down 8 and 32. Of two layers, for one micro-batch on the second stage and two on the last.
    own = 2 * 16 * (32 + 64 + 32 + 32 + 32 + 16 + 8 + 32)
    # For the loss the final norm's input and output.
    final = 2 * 16 * 2 * 32
    more = [
        after.activations_bytes - before.activations_bytes for before, after in zip(plain, late, strict=True)
    ]
    assert more == [0, 2 * own, 2 * (2 * own + final)]
