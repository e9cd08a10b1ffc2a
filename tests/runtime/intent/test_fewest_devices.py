"""The fewest devices: none of the smaller evaluated sizes makes it, and the answer does."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelcast.runtime import DataError
from kernelcast.runtime.intent.best import OpenRequest, find_best
from kernelcast.runtime.intent.fewest_devices import find_fewest

Ask = Callable[..., OpenRequest]
TOKENS = 10**10


def days_on(request: OpenRequest, gpus: int) -> float:
    """How long the tokens take on a number of devices."""
    estimate = find_best(request.with_space(gpus=(gpus,))).estimate
    return TOKENS / estimate.tokens_per_s / 86_400


@pytest.mark.parametrize("gpus", [3, 16, 40])
def test_no_smaller_size_makes_it(ask: Ask, gpus: int) -> None:
    request = ask(global_batch=240, schedule="1f1b", sequence_parallel=True)
    days = 1.001 * days_on(request, gpus)
    fewest = find_fewest(request, tokens=TOKENS, days=days)
    found = fewest.by_median.parallelism.world_size
    assert found <= gpus
    assert days_on(request, found) <= days
    assert fewest.by_median == find_best(request.with_space(gpus=(found,))).estimate
    assert gpus in fewest.evaluated
    # Whole nodes of 8, or single devices below one.
    for size in range(8, found, 8) if found > 8 else range(1, found):
        try:
            assert days_on(request, size) > days
        except DataError:  # no layout fits
            continue


def test_the_95th_percentile_needs_no_fewer(ask: Ask) -> None:
    request = ask(global_batch=240, schedule="1f1b", sequence_parallel=True)
    fewest = find_fewest(request, tokens=TOKENS, days=1.001 * days_on(request, 16))
    late = fewest.by_95th_percentile
    assert late is not None
    assert late.interval_s is not None
    assert late.interval_s[1] <= fewest.step_time_s
    assert late.parallelism.world_size > fewest.by_median.parallelism.world_size
    assert fewest.by_median.interval_s is not None
    assert fewest.by_median.interval_s[1] > fewest.step_time_s


def test_too_few_days_name_what_is_needed(ask: Ask) -> None:
    with pytest.raises(
        DataError, match=r"^days is 0\.001, expected at least [\d.]+: the fastest of \d+ eval"
    ):
        find_fewest(ask(global_batch=8), tokens=10**12, days=0.001)


def test_what_fits_nowhere_is_one_line(ask: Ask) -> None:
    request = ask(gpu_memory_bytes=10**6)
    with pytest.raises(DataError, match=r"^none of [\d,]+ layouts on 1 or 2 or 4 .* fits into 0\.0 GiB"):
        find_fewest(request, tokens=TOKENS, days=30)


def test_given_degrees_stay(ask: Ask) -> None:
    request = ask(tp=2, pp=2)
    fewest = find_fewest(request, tokens=TOKENS, days=30)
    assert fewest.by_median.parallelism.tp == fewest.by_median.parallelism.pp == 2
    assert replace(fewest.by_median.parallelism, dp=1).world_size == 4
