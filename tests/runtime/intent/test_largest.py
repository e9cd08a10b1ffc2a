"""The largest sizes fit, and the next step does not."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelcast.runtime import DataError, UsageError, load_model
from kernelcast.runtime.intent.best import OpenRequest, find_best
from kernelcast.runtime.intent.largest import largest_global_batch, largest_sequence_length

Ask = Callable[..., OpenRequest]


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_no_larger_global_batch_fits(ask: Ask, micro_batches: int) -> None:
    request = ask(gpus=8)
    largest = largest_global_batch(request, micro_batches=micro_batches, micro_batch=None)
    there = find_best(largest.request).estimate
    assert there.memory.fits
    assert there.parallelism.samples_per_update == largest.value
    for more in range(1, 9):
        batch = largest.value + more * micro_batches
        with pytest.raises(DataError):
            find_best(request.with_space(global_batch=batch, micro_batches=(micro_batches,)))


def test_the_largest_with_a_given_micro_batch(ask: Ask) -> None:
    largest = largest_global_batch(ask(gpus=8, micro_batch=1), micro_batches=2, micro_batch=1)
    assert largest.value == 16
    assert find_best(largest.request).estimate.parallelism.dp == 8


def test_no_longer_sequence_fits(ask: Ask) -> None:
    request = ask(gpus=8)
    largest = largest_sequence_length(request)
    assert largest.value % largest.step == 0
    assert 8 <= largest.value // largest.step < 16
    assert find_best(largest.request).estimate.memory.fits
    model = request.question.space.model
    with pytest.raises(DataError):
        find_best(request.with_space(model=model.with_sequence_length(largest.value + largest.step)))


def test_a_model_may_have_no_more_positions(ask: Ask) -> None:
    request = ask(gpus=8)
    model = load_model("gpt3-175b")
    assert model.learned_positions
    request = request.with_space(model=model, gpus=(64,))
    assert largest_sequence_length(request).value == model.learned_positions


def test_nothing_fits(ask: Ask) -> None:
    request = ask(gpu_memory_bytes=10**6)
    with pytest.raises(
        DataError,
        match=r"fits into 0\.0 GiB \(of 1\.0 MiB, 1\.5 GiB reserved\) with a probability of 0\.95: the smallest",
    ):
        largest_global_batch(request, micro_batches=1, micro_batch=None)
    with pytest.raises(
        DataError,
        match=r"fits into 0\.0 GiB \(of 1\.0 MiB, 1\.5 GiB reserved\) with a probability of 0\.95: the smallest",
    ):
        largest_sequence_length(request)


def test_the_memory_must_be_known(ask: Ask) -> None:
    request = ask()
    request = replace(request, question=replace(request.question, gpu_memory_bytes=None))
    for function in (
        lambda: largest_sequence_length(request),
        lambda: largest_global_batch(request, micro_batches=1, micro_batch=None),
    ):
        with pytest.raises(
            UsageError, match=r"^gpu_memory is neither given nor in the bundle, which largest needs"
        ):
            function()
