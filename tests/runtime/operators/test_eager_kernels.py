"""What eager operators move, against every kernel that PyTorch runs for layers written like torchtitan's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernelcast.runtime.operators import Direction, operator

_ROWS, _WIDTH, _HEADS, _KV_HEADS, _HEAD_SIZE = 64, 512, 8, 2, 64
_ENTRY_BYTES = 2
_TURNS = torch.polar(torch.ones(_HEAD_SIZE // 2), torch.ones(_HEAD_SIZE // 2))


class Moved(TorchDispatchMode):
    """Counts kernels, and the bytes of the tensors that each of them reads and writes; views move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels, self.bytes = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one kernel and count it."""
        found = func(*args, **(kwargs or {}))
        read = [one for one in args if isinstance(one, Tensor)]
        if isinstance(found, Tensor) and all(
            found.untyped_storage().data_ptr() != one.untyped_storage().data_ptr() for one in read
        ):
            self.kernels += 1
            self.bytes += sum(one.untyped_storage().nbytes() for one in (*read, found))
        return found


def rms_norm(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """In fp32, weighted in the type of its input."""
    wide = x.float()
    return ((wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * weight,)


def swiglu(gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
    """SiLU and a product."""
    return (torch.nn.functional.silu(gate) * up,)


def rope(queries: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
    """Pairs of entries turned as complex numbers in fp32."""
    pairs = [torch.view_as_complex(one.float().unflatten(-1, (-1, 2))) for one in (queries, keys)]
    turned = [torch.view_as_real(one * _TURNS).flatten(3) for one in pairs]
    return tuple(one.type_as(queries) for one in turned)


@pytest.mark.parametrize(
    ("run", "shapes", "vector"),
    [
        (rms_norm, [(1, _ROWS, _WIDTH), (_WIDTH,)], (1, _ROWS, _WIDTH)),
        (swiglu, [(1, _ROWS, _WIDTH)] * 2, (1, _ROWS, _WIDTH)),
        (
            rope,
            [(1, _ROWS, _HEADS, _HEAD_SIZE), (1, _ROWS, _KV_HEADS, _HEAD_SIZE)],
            (1, _ROWS, _HEADS, _KV_HEADS, _HEAD_SIZE),
        ),
    ],
)
def test_kernels_and_what_they_move(
    run: Callable[..., tuple[Tensor, ...]], shapes: list[tuple[int, ...]], vector: tuple[int, ...]
) -> None:
    row = operator(f"eager_{run.__name__}")
    read = [torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
    with Moved() as forward:
        written = run(*read)
    gradients = [torch.ones_like(one) for one in written]
    with Moved() as backward:
        torch.autograd.backward(written, gradients)
    for direction, moved in ((Direction.FORWARD, forward), (Direction.BACKWARD, backward)):
        # Weights, statistics and turns are small.
        assert moved.bytes == pytest.approx(row.moved_bytes(direction, vector, _ENTRY_BYTES), rel=0.01)
        assert moved.kernels == row.kernels[direction]
