"""Which layers of a chunk run again; what of a layer is in layers/test_calls.py and test_op_laws.py."""

import pytest

from kernelcast.runtime import Parallelism, load_model
from kernelcast.runtime.step.chunks import kept_layers
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.recomputation import recomputed
from kernelcast.runtime.step.sizes import Sizes


@pytest.mark.parametrize(
    ("kind", "layers", "of_chunk", "kept"),
    [
        ("full", 0, 4, 0),  # 0: all of them
        ("full", 1, 4, 3),
        ("full", 3, 4, 1),
        ("full", 4, 4, 0),
        ("full", 5, 4, 0),
        ("selective", 1, 4, 0),
        ("none", 1, 4, 0),
    ],
)
def test_layers_that_are_kept_whole(kind: str, layers: int, of_chunk: int, kept: int) -> None:
    layout = Parallelism.unchecked(recompute=kind, recompute_layers=layers)
    assert kept_layers(layout, of_chunk) == kept


@pytest.mark.parametrize("recipe", ["none", "tensorwise"])
def test_a_product_that_is_saved_per_operator_is_not_run_again(recipe: str) -> None:
    model = load_model("llama-3.1-8b")
    layout = Parallelism.unchecked(recompute="selective", recompute_modules=("per_op",), fp8_recipe=recipe)
    ops = transformer_layer(Sizes(model=model, layout=layout))
    again = {one.name: one.call.shape[-1] for one in recomputed(layout, ops) if one.call and one.weight}
    # Of queries, keys, values, output, gate, up and down every second one is saved, the first among them.
    assert again == {"qkv": 1024, "attention_output": 4096, "mlp_gate_up": 14336}
