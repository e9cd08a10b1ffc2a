"""The functions of an update: clipping as torch's own, and the optimizer in float32 and 16 bit."""

import pytest
import torch

from kernelcast.collector.functions.update import MasterAdamW, clip_to_norm, fused_adamw, squared_norm


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


def test_float32_is_adamw_itself() -> None:
    weights = [torch.randn(3, 4).requires_grad_(), torch.randn(5).requires_grad_()]
    copies = [weight.detach().clone().requires_grad_() for weight in weights]
    for weight, copy in zip(weights, copies, strict=True):
        weight.grad = torch.randn_like(weight)
        copy.grad = weight.grad.clone()
    MasterAdamW(weights, learning_rate=0.1).step()
    assert fused_adamw(copies, 0.1).defaults["fused"]
    torch.optim.AdamW(copies, lr=0.1).step()
    torch.testing.assert_close(weights, copies)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_updates_add_up_in_the_masters(dtype: torch.dtype) -> None:
    weight = torch.ones(4, dtype=dtype).requires_grad_()
    exact = torch.ones(4).requires_grad_()
    optimizer, reference = MasterAdamW([weight], learning_rate=1e-4), torch.optim.AdamW([exact], lr=1e-4)
    for _ in range(100):
        weight.grad, exact.grad = torch.ones(4, dtype=dtype), torch.ones(4)
        optimizer.step()
        reference.step()
    torch.testing.assert_close(optimizer.masters[0], exact)
    assert torch.equal(weight, exact.to(dtype))
    assert (weight != 1).all()  # each update alone is less than 1 has digits for


@pytest.mark.parametrize("scale", [0.25, 1024.0])
def test_a_scaled_loss_gives_the_same_update(scale: float) -> None:
    plain = torch.ones(4, dtype=torch.float16).requires_grad_()
    scaled = plain.detach().clone().requires_grad_()
    plain.grad, scaled.grad = torch.full((4,), 0.5).half(), torch.full((4,), 0.5 * scale).half()
    first, second = MasterAdamW([plain]), MasterAdamW([scaled], loss_scale=scale)
    first.step()
    second.step()
    torch.testing.assert_close(first.masters, second.masters)
    assert not torch.equal(second.masters[0], torch.ones(4))
