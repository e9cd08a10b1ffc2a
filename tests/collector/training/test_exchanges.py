"""Exchanges of context parallelism: between all heads of own tokens and own heads of all tokens."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from kernelcast.collector.training.exchanges import heads_for_tokens, tokens_for_heads
from kernelcast.collector.training.groups import Part
from tests.collector.training.in_threads import of_every_rank

SIZES = [
    # Processes, sequences, tokens, heads of queries and of keys, their size.
    (1, 2, 3, 2, 1, 2),
    (2, 1, 4, 2, 2, 3),
    (2, 3, 6, 8, 2, 5),
    (3, 2, 9, 6, 3, 1),
]


@pytest.mark.parametrize(("parts", "b", "length", "heads", "kv_heads", "size"), SIZES)
def test_own_heads_of_all_tokens_and_back(
    parts: int, b: int, length: int, heads: int, kv_heads: int, size: int
) -> None:
    counts = heads, kv_heads, kv_heads
    whole = [torch.randn(b, length, count, size) for count in counts]
    weights = [torch.randn_like(x) for x in whole]

    def run(index: int, group: dist.ProcessGroup) -> tuple[list[Tensor], Tensor, list[Tensor]]:
        part = Part(index=index, parts=parts, group=group)
        own = [x[:, part.of(length)].clone().requires_grad_() for x in whole]
        got = heads_for_tokens((own[0], own[1], own[2]), part)
        loss = sum((x * w[:, :, part.of(w.shape[2])]).sum() for x, w in zip(got, weights, strict=True))
        gradients = torch.autograd.grad(loss, own, retain_graph=True)
        return [x.detach() for x in got], tokens_for_heads(got[0].flatten(2), part).detach(), list(gradients)

    for index, (got, back, gradients) in enumerate(of_every_rank(parts, run)):
        part = Part(index=index, parts=parts)
        assert all(torch.equal(x, w[:, :, part.of(w.shape[2])]) for x, w in zip(got, whole, strict=True))
        assert torch.equal(back, whole[0][:, part.of(length)].flatten(2))
        assert all(torch.equal(x, w[:, part.of(length)]) for x, w in zip(gradients, weights, strict=True))
