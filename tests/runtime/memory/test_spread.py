"""Intervals of memory and probabilities to fit."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import Parallelism, load_model
from kernelcast.runtime.estimate.device_memory import Memory, MemorySpread, memory_spread
from kernelcast.runtime.memory.stages import stage_memory

SPREAD = MemorySpread(low=-0.1, middle=0.01, high=0.05)


def test_quantiles() -> None:
    assert SPREAD.interval_bytes(1000) == (905, 1051)
    for probability, log_ratio in ((0.05, -0.1), (0.5, 0.01), (0.95, 0.05)):
        assert SPREAD.fit_probability(1000, 1000 * math.exp(log_ratio)) == pytest.approx(probability)
    assert SPREAD.fit_probability(1000, 0) == 0


@given(st.floats(0.01, 0.99), st.integers(10**6, 10**12))
def test_the_largest_prediction_that_fits(probability: float, usable: int) -> None:
    most = usable * SPREAD.largest_share(probability)
    assert SPREAD.fit_probability(most, usable) >= probability - 1e-5
    assert SPREAD.fit_probability(most * 1.001, usable) < probability


@pytest.mark.parametrize("has_experts", [False, True])
def test_what_ships(has_experts: bool) -> None:
    spread = memory_spread(has_experts)
    assert -0.2 < spread.low < spread.middle < spread.high < 0.2


def test_of_an_answer() -> None:
    stages = stage_memory(
        load_model("llama-2-7b"), Parallelism(pp=1, tp=1, dp=8, micro_batch=1, micro_batches=1)
    )
    need = stages[0].total_bytes
    memory = Memory(
        stages=stages, gpu_memory_bytes=need + 100, source="asked", reserved_bytes=100, spread=SPREAD
    )
    low, high = memory.interval_bytes or (0, 0)
    assert low < need < high
    assert memory.fits
    assert 0.4 < (memory.fit_probability or 0) < 0.5  # more is measured than predicted, in the middle
    assert (
        Memory(stages=stages, gpu_memory_bytes=None, source="unknown", spread=SPREAD).fit_probability is None
    )
