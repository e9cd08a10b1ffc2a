"""The parameter tensors that one pipeline stage holds: what its optimizer step runs over (Table III)."""

from math import prod

from kernelcast.runtime.operators import Shape


def stage_parameter_shapes(shape: Shape, role: str) -> list[tuple[int, ...]]:
    """Tensor shapes of a stage with `shape.stage_layers` GeLU layers on one of `tensor_parallel` devices.

    `role` is "first" (with the token embedding), "middle", or "last" (with the final norm and the output projection).
    Their sizes add up to the paper's Table III, biases of row-parallel linears divided as it divides them.
    """
    before, layer, after = _tensors(shape, role)
    return [*before, *layer * shape.stage_layers, *after]


def stage_parameter_count(shape: Shape, role: str) -> int:
    """Number of parameters of that stage on one device."""
    before, layer, after = (sum(map(prod, tensors)) for tensors in _tensors(shape, role))
    return before + layer * shape.stage_layers + after


_Tensors = list[tuple[int, ...]]


def _tensors(shape: Shape, role: str) -> tuple[_Tensors, _Tensors, _Tensors]:
    """What stands before the layers, in one layer, and after them."""
    d, tp, mlp = shape.hidden_size, shape.tensor_parallel, shape.local_mlp_size
    kv_width = 2 * shape.kv_heads * shape.head_size
    layer: _Tensors = [
        (d,), (d,), (d,), (d,),
        ((d + kv_width) // tp, d), ((d + kv_width) // tp,),
        (d, d // tp), (d // tp,),
        (mlp, d), (mlp,),
        (d, mlp), (d // tp,),
    ]  # fmt: skip
    vocabulary_matrix = (shape.local_vocabulary, d)
    before: _Tensors = [vocabulary_matrix] if role == "first" else []
    after: _Tensors = [(d,), (d,), vocabulary_matrix] if role == "last" else []
    return before, layer, after
