"""The softmax that torch.compile makes: a kernel for each shape, and what is said where there is none."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelcast.collector.benches import Place, Point, UnsupportedError, attention
from kernelcast.collector.benches.attention import compiled_causal_softmax

Compiled = Callable[..., object]


def use(monkeypatch: pytest.MonkeyPatch, backend: Callable[[Any, list[Any]], Compiled]) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))


def point(tokens: int, heads: int) -> Point:
    return Point(operator="fused_causal_softmax", vector=(heads, tokens, tokens))


def test_every_shape_has_a_kernel_of_its_own(cpu: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[list[Any]] = []

    def backend(graph: Any, inputs: list[Any]) -> Compiled:
        compiled.append([tuple(one.shape) if isinstance(one, Tensor) else one for one in inputs])
        forward: Compiled = graph.forward
        return forward

    use(monkeypatch, backend)
    # More than the recompilations after which torch gives up on a function.
    for number, (tokens, heads) in enumerate([(8 * n, 1 + n % 3) for n in range(1, 13)], start=1):
        bench = compiled_causal_softmax(point(tokens, heads), cpu)
        (output,) = bench.outputs()
        assert torch.allclose(output.sum(dim=-1), torch.ones(heads, tokens))
        assert len(compiled) == number
        assert (heads, tokens, tokens) in compiled[-1]
        assert all(type(size) is int for one in compiled[-1] for size in one)


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError, "CUDA out of memory"),
        (RuntimeError("no such\nbackend"), UnsupportedError, r"torch.compile failed \(no such\)$"),
    ],
)
def test_memory_is_not_taken_for_what_the_device_lacks(
    cpu: Place,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    expected: type[Exception],
    message: str,
) -> None:
    def backend(graph: Any, inputs: list[Any]) -> Compiled:
        def fail(*_: object) -> object:
            raise error

        return fail

    use(monkeypatch, backend)
    torch._dynamo.reset()
    with pytest.raises(expected, match=message):
        compiled_causal_softmax(point(16, 2), cpu)


@pytest.mark.parametrize(
    ("device", "has_triton", "message"),
    [
        ("cpu", True, "no fused scale-mask-softmax kernel on device type 'cpu'"),
        (
            "cuda",
            False,
            "no fused scale-mask-softmax kernel: torch.compile needs triton, which is not installed",
        ),
        ("cuda", True, "torch.compile failed"),
    ],
)
def test_a_kernel_needs_a_gpu_and_triton(
    device: str, has_triton: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(point: Point, place: Place) -> None:
        raise UnsupportedError("torch.compile failed")

    monkeypatch.setattr(
        attention, "find_spec", lambda name: name if has_triton and name == "triton" else None
    )
    monkeypatch.setattr(attention, "compiled_causal_softmax", fails)
    with pytest.raises(UnsupportedError, match=f"^{message}$"):
        attention.fused_causal_softmax(point(8, 2), Place(torch.device(device), torch.float32))
