"""What happens once per update over all parameters of a stage."""

import torch
from torch import Tensor

from kernelcast.collector.benches.bench import Bench, Builder, Place
from kernelcast.collector.functions.clipping import clip_to_norm, squared_norm
from kernelcast.collector.functions.mixed_precision import MasterAdamW
from kernelcast.collector.functions.stage_parameters import stage_parameter_shapes
from kernelcast.runtime.operators import Shape


def optimizer(role: str) -> Builder:
    """Fused Adam over the stage in `role`, with float32 master weights in 16 bit."""

    def build(s: Shape, place: Place) -> Bench:
        parameters = [place.parameter(*size) for size in stage_parameter_shapes(s, role)]
        step = MasterAdamW(parameters).step

        def forward() -> tuple[Tensor, ...]:
            step()
            return ()

        return Bench(forward, [], parameters)

    return build


def gradient_zero(s: Shape, place: Place) -> Bench:
    """The gradients of a stage set to zero; they lie in one buffer, as Megatron-LM keeps them."""
    buffer = torch.zeros(s.stage_parameters, device=place.device, dtype=place.dtype)

    def forward() -> tuple[Tensor, ...]:
        buffer.zero_()
        return ()

    return Bench(forward)


def gradient_clip(s: Shape, place: Place) -> Bench:
    """The norm of a stage's gradients and their scaling; ranks exchange one number in between, which is not counted."""
    buffer = torch.zeros(s.stage_parameters, device=place.device, dtype=place.dtype)

    def forward() -> tuple[Tensor, ...]:
        clip_to_norm(buffer, squared_norm(buffer))
        return ()

    return Bench(forward)
