"""What the host's part of an update takes, by hand."""

from typing import Any

import pytest

from kernelcast.runtime import Parallelism, UsageError
from kernelcast.runtime.step.update import Host
from tests.runtime.step.published_jobs import GPT_20B, PAPER, taken_apart


def layout(**changes: Any) -> Parallelism:
    return Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=1, **changes)


def test_rates_are_those_stated_or_of_the_device() -> None:
    # 1 GB/s is 1000 bytes per µs.
    assert Host.of(layout(host_link_gb_per_s=2.0), 64e9) is None
    away = layout(offload_activations=0.5)
    assert Host.of(away, 64e9) == Host(link=64_000, memory=0)
    stated = layout(offload_optimizer=0.5, host_link_gb_per_s=2.0, host_memory_gb_per_s=5.0)
    assert Host.of(stated, 64e9) == Host(link=2000, memory=5000)
    for unknown in (None, 0.0):
        with pytest.raises(UsageError, match=r"^host_link_gb_per_s is 0, expected"):
            Host.of(away, unknown)
    with pytest.raises(UsageError, match=r"^host_memory_gb_per_s is 0, expected"):
        Host.of(layout(offload_optimizer=0.5), 64e9)


def test_an_update() -> None:
    # Gradients of 4 bytes come, weights of 2 go; 28 bytes and the 2 of the copy are moved in memory.
    host = Host(link=3.0, memory=10.0)
    found = host.update_us(layout(offload_optimizer=1.0), 7, gradient_bytes=4, weight_bytes=2)
    assert found == pytest.approx(7 * (6 / 3 + 30 / 10))


@pytest.mark.parametrize(("zero", "parameters"), [(0, 1_323_987_456), (1, 165_498_432)])
def test_the_part_of_a_stage(zero: int, parameters: int) -> None:
    # The first stage's parameters, or an eighth of them; three eighths are the host's. Gradients are in fp32.
    parts = taken_apart(
        GPT_20B,
        PAPER | {"zero": zero, "offload_optimizer": 0.375, "reduce_dtype": "float32"},
        gpus_per_node=4,
    )
    host = Host(link=1000.0, memory=5000.0)
    own = -(-3 * parameters // 8)
    found = parts.host_update_us(parts.stages[0], host)
    assert found == pytest.approx(own * ((4 + 2) / 1000 + (28 + 2) / 5000), rel=1e-12)
