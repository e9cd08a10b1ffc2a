"""Experts' functions against what they mean, written out token by token."""

import pytest
import torch

from kernelcast.collector.functions.experts import (
    BALANCING,
    by_expert,
    grouped_linear,
    permute,
    route,
    unpermute,
)


@pytest.mark.parametrize("router", ["softmax", "sigmoid"])
def test_the_best_experts_and_their_weights(router: str) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, -1.0, 2.9]])
    weights, chosen = route(logits, 2, router)  # type: ignore[arg-type]
    assert chosen.tolist() == [[1, 2], [0, 2]]
    scores = torch.softmax(logits, -1) if router == "softmax" else torch.sigmoid(logits)
    of_first = scores[0, [1, 2]]
    torch.testing.assert_close(weights[0], of_first / of_first.sum())


def test_the_balancing_loss_is_added_backward() -> None:
    logits = torch.randn(6, 4, requires_grad=True)
    weights, chosen = route(logits, 2, "softmax", loss_scale=3.0)
    (found,) = torch.autograd.grad(
        weights.sum(), [logits]
    )  # the weights of a token add up to 1: no gradient of theirs
    shares = torch.bincount(chosen.flatten(), minlength=4) / 12
    loss = 3.0 * BALANCING * 4 * (shares * torch.softmax(logits, -1).mean(0)).sum()
    (expected,) = torch.autograd.grad(loss, [logits])
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=1e-4)
    assert expected.abs().max() > 1e-5


def test_a_mixture_token_by_token() -> None:
    tokens, experts = 7, 4
    x, logits = torch.randn(tokens, 3), torch.randn(tokens, experts)
    matrices = torch.randn(experts, 5, 3)
    weights, chosen = route(logits, 2, "softmax")
    pairs, counts = by_expert(chosen, experts)
    assert counts.tolist() == [int((chosen == expert).sum()) for expert in range(experts)]
    out = unpermute(grouped_linear(permute(x, pairs // 2), matrices, counts), pairs, weights)
    for token in range(tokens):
        own = sum(weights[token, i] * (matrices[chosen[token, i]] @ x[token]) for i in range(2))
        torch.testing.assert_close(out[token], own)


def test_an_expert_without_a_row() -> None:
    x, matrices = torch.randn(4, 3), torch.randn(3, 5, 3)
    out = grouped_linear(x, matrices, torch.tensor([1, 0, 3]))
    torch.testing.assert_close(out, torch.cat([x[:1] @ matrices[0].T, x[1:] @ matrices[2].T]))
