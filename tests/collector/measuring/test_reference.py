"""The reference product that is timed next to every sample."""

import torch

from kernelcast.collector.measuring.disturbance import Reference


def test_it_remembers_its_quietest_time() -> None:
    reference = Reference(torch.device("cpu"), torch.float32)
    reference.saturate()
    times = [reference.time_us() for _ in range(5)]
    assert reference.best_us == min(times) > 0
    # 2 · 256³ FLOPs take a core between a microsecond and a second.
    assert 1 < min(times) < 1e6
