"""The parameter tensors that one pipeline stage holds: what its optimizer step runs over (Table III)."""

from math import prod

from kernelcast.runtime.operators import Shape


def stage_parameter_shapes(shape: Shape, role: str) -> list[tuple[int, ...]]:
    """Tensor shapes of a stage with `shape.stage_encoders` GeLU encoders on one of `tensor_parallel` devices.

    `role` is "first" (with the token embedding), "middle", or "last" (with the final norm and the output projection).
    Their sizes add up to the paper's Table III, biases of row-parallel linears divided as it divides them.
    """
    d, mp, mlp = shape.hidden_size, shape.tensor_parallel, shape.local_mlp_size
    kv_width = 2 * shape.kv_heads * shape.head_size
    encoder = [
        (d,), (d,), (d,), (d,),
        ((d + kv_width) // mp, d), ((d + kv_width) // mp,),
        (d, d // mp), (d // mp,),
        (mlp, d), (mlp,),
        (d, mlp), (d // mp,),
    ]  # fmt: skip
    tensors = encoder * shape.stage_encoders
    if role == "first":
        tensors = [(shape.local_vocabulary, d), *tensors]
    if role == "last":
        tensors = [*tensors, (d,), (d,), (shape.local_vocabulary, d)]
    return tensors


def stage_parameter_count(shape: Shape, role: str) -> int:
    """Number of parameters of that stage on one device."""
    return sum(prod(size) for size in stage_parameter_shapes(shape, role))
