"""Caches before a measured pass: what was just written keeps its values, everything else is streamed out."""

import pytest
import torch

from kernelcast.collector.machine import probe_cpu
from kernelcast.collector.machine.probe_cpu import cpu_caches, last_level_cache_bytes
from kernelcast.collector.measuring import cache_state
from kernelcast.collector.measuring.cache_state import CacheState

MOST_BYTES = cache_state._MOST_CPU_BYTES  # less while tests run


def test_tensors_keep_their_values_and_ask_for_no_gradient_more() -> None:
    x = torch.randn(3, 4).requires_grad_()
    ids = torch.arange(5)
    values = x.detach().clone()
    CacheState(torch.device("cpu")).as_in_a_step([x, ids])
    assert torch.equal(x, values)
    assert x.requires_grad
    assert x.is_leaf
    assert ids.tolist() == [0, 1, 2, 3, 4]
    assert (x._version, ids._version) == (1, 0)  # numbers are written once, ids not


@pytest.mark.parametrize(
    ("cache_bytes", "streamed_bytes"),
    [(3 << 20, 9 << 19), (0, 48 << 20), (64 << 20, 96 << 20), (1 << 30, 96 << 20)],
)
def test_half_as_much_again_as_the_cache_is_streamed_through_it(
    monkeypatch: pytest.MonkeyPatch, cache_bytes: int, streamed_bytes: int
) -> None:
    monkeypatch.setattr(cache_state, "last_level_cache_bytes", lambda: cache_bytes)
    monkeypatch.setattr(cache_state, "_MOST_CPU_BYTES", MOST_BYTES)
    streamed = CacheState(torch.device("cpu"))._stream
    assert streamed.numel() * streamed.element_size() == streamed_bytes


def test_the_last_level_is_the_largest() -> None:
    found = last_level_cache_bytes()
    if cpu_caches():
        assert found >= max(int(line.split()[-1][:-1]) for line in cpu_caches()) << 10
    else:
        assert found == 0


def test_sizes_have_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_cpu, "cpu_caches", lambda: ("L1 Data 32K", "L2 Unified 3M", "L3 Unified 2048K"))
    assert last_level_cache_bytes() == 3 << 20
