"""What is not kept is computed again as frameworks do: all of it."""

import torch
from torch import Tensor

from kernelcast.collector.training.model import checkpointed


def gradients_and_runs(*, when: bool) -> tuple[Tensor, list[str]]:
    runs = []

    def call(x: Tensor) -> Tensor:
        runs.append("start")
        kept = x.exp()
        result = kept + 1  # nothing of this is kept for the backward pass
        runs.append("end")
        return result

    x = torch.arange(4.0, requires_grad=True)
    checkpointed(call, x, when=when).sum().backward()
    assert x.grad is not None
    return x.grad, runs


def test_all_of_it_runs_again_to_the_same_gradients() -> None:
    kept, once = gradients_and_runs(when=False)
    again, twice = gradients_and_runs(when=True)
    assert once == ["start", "end"]
    assert twice == ["start", "end"] * 2
    assert torch.equal(kept, again)
