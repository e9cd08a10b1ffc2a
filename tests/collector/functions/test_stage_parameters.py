"""The tensors of a stage's optimizer step add up to the parameters that the runtime predicts with (Table III)."""

from math import prod

import pytest

from kernelcast.collector.functions.stage_parameters import stage_parameter_count, stage_parameter_shapes
from kernelcast.runtime import ModelConfig
from kernelcast.runtime.operators import Shape
from kernelcast.runtime.step.parameters import padded_vocabulary, stage_parameters

ROLES = {"first": (True, False), "middle": (False, False), "last": (False, True)}


def stage(model: ModelConfig, tp: int, layers: int) -> Shape:
    return Shape(
        hidden_size=model.hidden_size,
        attention_heads=model.attention_heads,
        kv_heads=model.kv_heads,
        mlp_size=model.mlp_size,
        vocabulary_size=padded_vocabulary(model.vocabulary_size, tp),
        tensor_parallel=tp,
        stage_layers=layers,
    )


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("kv_heads", [8, 4])
@pytest.mark.parametrize("layers", [0, 1, 11])
def test_the_tensors_are_the_predicted_parameters(role: str, tp: int, kv_heads: int, layers: int) -> None:
    model = ModelConfig(
        name="gpt",
        hidden_size=64,
        sequence_length=8,
        attention_heads=8,
        kv_heads=kv_heads,
        layers=44,
        vocabulary_size=50257,
        mlp_size=192,
    )
    first, last = ROLES[role]
    shape = stage(model, tp, layers)
    expected = stage_parameters(model, tp, layers=layers, first=first, last=last)
    assert sum(map(prod, stage_parameter_shapes(shape, role))) == expected
    assert stage_parameter_count(shape, role) == expected


def test_table_iii_of_an_layer() -> None:
    d, tp = 64, 2
    shape = Shape(
        hidden_size=d, attention_heads=8, kv_heads=8, mlp_size=4 * d, vocabulary_size=256, tensor_parallel=tp
    )
    assert stage_parameter_count(shape, "middle") == 4 * d + 8 * d * (d + 1) // tp + d * (4 * d + 1) // tp


def test_the_ends_of_a_stage() -> None:
    shape = Shape(hidden_size=8, attention_heads=2, kv_heads=2, mlp_size=32, vocabulary_size=128)
    middle = stage_parameter_shapes(shape, "middle")
    assert stage_parameter_shapes(shape, "first") == [(128, 8), *middle]
    assert stage_parameter_shapes(shape, "last") == [*middle, (8,), (8,), (128, 8)]
