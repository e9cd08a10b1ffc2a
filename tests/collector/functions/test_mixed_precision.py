"""The optimizer's step in float32, and in 16 bit over float32 master weights."""

import pytest
import torch

from kernelcast.collector.functions.update import MasterAdamW


def test_float32_is_adamw_itself() -> None:
    weights = [torch.randn(3, 4).requires_grad_(), torch.randn(5).requires_grad_()]
    copies = [weight.detach().clone().requires_grad_() for weight in weights]
    for weight, copy in zip(weights, copies, strict=True):
        weight.grad = torch.randn_like(weight)
        copy.grad = weight.grad.clone()
    MasterAdamW(weights, learning_rate=0.1).step()
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


def test_a_scaled_loss_gives_the_same_update() -> None:
    plain = torch.ones(4, dtype=torch.float16).requires_grad_()
    scaled = plain.detach().clone().requires_grad_()
    plain.grad, scaled.grad = torch.full((4,), 0.5).half(), torch.full((4,), 512.0).half()
    first, second = MasterAdamW([plain]), MasterAdamW([scaled], loss_scale=1024.0)
    first.step()
    second.step()
    torch.testing.assert_close(first.masters, second.masters)
    assert not torch.equal(second.masters[0], torch.ones(4))
