"""The best layout is the search's, and its runners-up are the best of other kinds."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelcast.runtime import DataError, Parallelism
from kernelcast.runtime.intent.best import RUNNERS_UP, OpenRequest, find_best
from kernelcast.runtime.search.search import search
from kernelcast.runtime.search.sweep import sweep

Ask = Callable[..., OpenRequest]


def kind_of(layout: Parallelism) -> tuple[int, ...]:
    return layout.tp, layout.pp, layout.dp, layout.cp, layout.ep, layout.expert_tp, layout.zero == 3


@pytest.mark.parametrize("gpus", [3, 16, 24])
def test_it_is_what_a_full_search_finds(ask: Ask, gpus: int) -> None:
    request = ask(gpus=gpus, global_batch=24)
    best = find_best(request)
    result = search(request.estimator, replace(request.question, top=1))
    assert result.best is not None
    assert best.estimate.parallelism == result.best.parallelism
    assert best.estimate.step_time_s == result.best.step_time_s
    assert best.counts.layouts == result.counts.layouts


def test_runners_up_are_the_best_of_other_kinds(ask: Ask) -> None:
    request = ask(gpus=12, global_batch=24)
    # Everything is simulated, and all of it kept.
    found = sweep(request.estimator.predictor, replace(request.question, top=10_000, prune=False)).best
    firsts: dict[object, int] = {}
    for row in range(len(found)):
        firsts.setdefault(kind_of(found.layouts.parallelism(row)), row)
    best = find_best(request)
    expected = [found.step_us[row] / 1e6 for row in list(firsts.values())[: 1 + RUNNERS_UP]]
    times_s = [best.estimate.step_time_s, *(one.estimate.step_time_s for one in best.runners_up)]
    assert times_s == pytest.approx(expected)


def test_runners_up_are_found_behind_many_of_the_best_kind(ask: Ask) -> None:
    request = ask()
    few = sweep(request.estimator.predictor, replace(request.question, top=1 + RUNNERS_UP)).best.layouts
    assert len({kind_of(few.parallelism(row)) for row in range(len(few))}) <= RUNNERS_UP
    assert len(find_best(request).runners_up) == RUNNERS_UP


def test_runners_up_say_what_differs(ask: Ask) -> None:
    best = find_best(ask())
    for one in best.runners_up:
        own, first = one.estimate.parallelism, best.estimate.parallelism
        assert kind_of(own) != kind_of(first)
        assert one.slower == pytest.approx(one.estimate.step_time_s / best.estimate.step_time_s - 1)
        said = {text.split(" instead of ")[0] for text in one.differs_in}
        differing = {name for name in ("pp", "tp", "dp") if getattr(own, name) != getattr(first, name)}
        assert {f"{name} {getattr(own, name)}" for name in differing} <= said
        assert (f"ZeRO {own.zero}" in said) is (own.zero != first.zero)


def test_what_is_given_is_fixed(ask: Ask) -> None:
    best = find_best(ask(tp=8, recompute="full", sequence_parallel=True, schedule="gpipe", zero=1))
    for one in (best.estimate, *(other.estimate for other in best.runners_up)):
        layout = one.parallelism
        assert (layout.tp, layout.recompute, layout.sequence_parallel) == (8, "full", True)
    alone = find_best(ask(pp=2, tp=8, dp=1, micro_batch=1))
    assert alone.estimate.parallelism.world_size == 16
    assert find_best(ask(pp=2, virtual_stages=4)).estimate.parallelism.schedule == "interleaved"


def test_nothing_that_fits_is_one_line(ask: Ask) -> None:
    with pytest.raises(DataError, match=r"^none of [\d,]+ layouts on 16 device\(s\) fits into 0\.0 GiB "):
        find_best(ask(gpu_memory_bytes=1000))
