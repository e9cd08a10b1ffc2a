"""Gradients clipped to a norm, against torch's own clipping."""

import pytest
import torch

from kernelcast.collector.functions.update import clip_to_norm, squared_norm


@pytest.mark.parametrize("scale", [1e-3, 0.02, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_torch_clips(scale: float, dtype: torch.dtype) -> None:
    gradients = (torch.randn(1000, generator=torch.Generator().manual_seed(5)) * scale).to(dtype)
    parameter = torch.zeros(1000, dtype=dtype, requires_grad=True)
    parameter.grad = gradients.clone()
    norm = torch.nn.utils.clip_grad_norm_([parameter], 0.5)
    squared = squared_norm(gradients)
    assert (squared.dtype, squared.ndim) == (torch.float32, 0)
    assert float(squared) == pytest.approx(float(norm) ** 2, rel=1e-5 if dtype == torch.float32 else 2e-2)
    clip_to_norm(gradients, squared, most_norm=0.5)
    torch.testing.assert_close(gradients, parameter.grad)


def test_a_norm_of_more_than_these_gradients_counts_where_others_hold_the_rest() -> None:
    gradients = torch.tensor([3.0, 4.0])
    clip_to_norm(gradients, squared_norm(gradients) * 4)
    assert gradients.tolist() == pytest.approx([0.3, 0.4])


def test_no_gradients() -> None:
    gradients = torch.zeros(3)
    clip_to_norm(gradients, squared_norm(gradients))
    assert gradients.tolist() == [0, 0, 0]
