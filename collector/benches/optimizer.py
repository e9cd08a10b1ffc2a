"""Operators that run once per update over all parameters of a stage."""

from collections.abc import Callable, Sequence
from math import isqrt

import torch
from torch import Tensor

from kernelcast.collector.benches.bench import Bench, Place, Point
from kernelcast.collector.functions.update import MasterAdamW, clip_to_norm, squared_norm

_ALIGNED = 8  # entries: model widths are multiples of it, and kernels read several entries at once


def adam(point: Point, place: Place) -> Bench:
    """Fused Adam over the tensors of a stage, with float32 master weights in 16 bit."""
    parameters, layers = point.vector
    tensors = [place.parameter(*size) for size in stage_tensors(parameters, layers)]
    return _without_outputs(MasterAdamW(tensors).step, tensors)


def stage_tensors(parameters: int, layers: int) -> list[tuple[int, ...]]:
    """Sizes of tensors that add up to `parameters`: `layers` GPT layers, and the rest as one tensor.

    A layer of hidden size d holds 12d² + 13d: two norms, QKV and output projection, an MLP of 4d, all with biases.
    """
    d = (isqrt(169 + 48 * (parameters // layers)) - 13) // 24 if layers else 0
    d -= d % _ALIGNED if d > _ALIGNED else 0
    layer = [
        (d,), (d,), (d,), (d,),
        (3 * d, d), (3 * d,), (d, d), (d,),
        (4 * d, d), (4 * d,), (d, 4 * d), (d,),
    ]  # fmt: skip
    rest = parameters - layers * (12 * d * d + 13 * d)
    return [*(layer * layers if d else ()), *([(rest,)] if rest else ())]


def _of_gradients(point: Point, place: Place, run: Callable[[Tensor], object]) -> Bench:
    """A function of the gradients of a stage; they are one buffer, as in Megatron-LM."""
    buffer = torch.zeros(*point.vector, device=place.device, dtype=place.dtype)
    return _without_outputs(lambda: run(buffer))


def _without_outputs(run: Callable[[], object], parameters: Sequence[Tensor] = ()) -> Bench:
    def forward() -> tuple[()]:
        run()
        return ()

    return Bench(forward, [], parameters)


def gradient_zero(point: Point, place: Place) -> Bench:
    return _of_gradients(point, place, torch.Tensor.zero_)


def gradient_clip(point: Point, place: Place) -> Bench:
    """The norm of a stage's gradients and their scaling, without the exchange of one number between ranks."""
    return _of_gradients(point, place, lambda buffer: clip_to_norm(buffer, squared_norm(buffer)))


def gradient_scale(point: Point, place: Place) -> Bench:
    """The norm of a stage's gradients, which reveals NaN and Inf, and their division by the loss scale."""
    return _of_gradients(point, place, lambda buffer: (torch.linalg.vector_norm(buffer), buffer.mul_(0.5)))
