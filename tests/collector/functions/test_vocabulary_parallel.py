"""Vocabulary-parallel embedding and loss equal the undivided ones in values and gradients."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from kernelcast.collector.functions.vocabulary_parallel import (
    local_rows,
    mask_rows,
    vocabulary_parallel_cross_entropy,
)
from kernelcast.collector.training.exchanges import leave

ROWS, WIDTH = 12, 5


def _inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 7, ROWS, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(ROWS, (2, 7), generator=generator)
    weight = torch.randn(ROWS, WIDTH, generator=generator).to(dtype).requires_grad_()
    return logits, targets, weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_whole_vocabulary_is_torchs_cross_entropy(dtype: torch.dtype) -> None:
    logits, targets, _ = _inputs(dtype)
    expected = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view(2, 7)
    (wanted,) = torch.autograd.grad(expected.sum(), logits)
    found = vocabulary_parallel_cross_entropy(logits, targets, 0)
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    assert found.dtype == torch.float32
    assert gradient.dtype == dtype
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, wanted)


def test_huge_logits_stay_finite() -> None:
    loss = vocabulary_parallel_cross_entropy(torch.tensor([[[3e4, 0.0]]]), torch.tensor([[1]]), 0)
    assert float(loss) == pytest.approx(3e4)


def test_a_shard_alone_takes_other_shards_targets_for_0() -> None:
    logits = torch.zeros(1, 2, 4)
    loss = vocabulary_parallel_cross_entropy(logits, torch.tensor([[5, 1]]), 4)
    assert loss.tolist() == [pytest.approx([math.log(4)] * 2)]
    out = _embedded(torch.tensor([[5, 1]]), torch.ones(4, 3), 4)
    assert out.tolist() == [[[1.0] * 3, [0.0] * 3]]


def _embedded(ids: Tensor, weight: Tensor, first_row: int) -> Tensor:
    local, elsewhere = local_rows(ids, first_row, weight.shape[0])
    return mask_rows(F.embedding(local, weight), elsewhere)


def _shard(rank: int, world: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    try:
        logits, targets, weight = _inputs()
        rows = ROWS // world
        own = slice(rank * rows, (rank + 1) * rows)
        expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(2, 7)
        (wanted,) = torch.autograd.grad((expected * torch.arange(7)).sum(), logits)
        shard = logits.detach()[..., own].contiguous().requires_grad_()
        group = dist.group.WORLD
        found = vocabulary_parallel_cross_entropy(shard, targets, rank * rows, group)
        (gradient,) = torch.autograd.grad((found * torch.arange(7)).sum(), shard)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradient, wanted[..., own])

        weights = weight.detach()[own].clone().requires_grad_()
        out = leave(_embedded(targets, weights, rank * rows), group)
        torch.testing.assert_close(out, weight[targets])
        out.square().sum().backward()
        weight[targets].square().sum().backward()
        torch.testing.assert_close(weights.grad, weight.grad[own])
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_shards_are_the_whole(tmp_path: Path) -> None:
    command = [sys.executable, __file__, str(tmp_path / "meeting")]
    ranks = [subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True) for rank in range(2)]
    for rank in ranks:
        _, errors = rank.communicate(timeout=600)
        assert rank.returncode == 0, errors


if __name__ == "__main__":
    _shard(int(sys.argv[2]), 2, sys.argv[1])
