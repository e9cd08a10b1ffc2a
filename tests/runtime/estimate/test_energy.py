"""Energy of a step: by hand, never above the limit or below idle, and only where power was measured."""

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import Estimator, Parallelism, load_model
from kernelcast.runtime.catalogue import PowerLaw, power_laws
from kernelcast.runtime.estimate.energy import energy_of
from kernelcast.runtime.hardware.devices import Device
from kernelcast.runtime.operators import Direction

LAW = PowerLaw(
    idle_w=100,
    of_flops_w=600,
    of_bandwidth_w=300,
    limit_w=700,
    rows=1,
    median_error=0.1,
    energy_error=0,
    source="x",
)
DEVICE = Device(
    name="made-up",
    title="made up",
    architecture="none",
    memory_bytes=1 << 30,
    memory_bytes_per_s=1e12,
    cache_bytes=1,
    power_w=700,
    source="made up",
    flops_per_s=MappingProxyType({"bfloat16": 1e15}),
)
PRODUCT = ("gemm", Direction.FORWARD), (1000, 1000, 1000), "qkv"
REDUCED = ("all_reduce", Direction.ONCE), (1000, 1, 8), "tensor"


def test_by_hand() -> None:
    """2 GFLOP and 6 MB in 10 µs: a fifth of the FLOP/s, 0.6 of the bandwidth. A thousand of them in 10 ms."""
    energy = energy_of(
        {PRODUCT: 0.01, REDUCED: 0.005},
        answers={PRODUCT: (10.0, 9.0, 11.0), REDUCED: (5.0, 4.0, 6.0)},
        replicas=4,
        devices=4,
        step_time_s=0.02,
        of=DEVICE,
        law=LAW,
        dtype="bfloat16",
    )
    power_w = 100 + 600 * 0.2 + 300 * 0.6
    assert energy.operators_j == pytest.approx({"gemm": 4 * 0.01 * power_w})
    assert energy.step_j == pytest.approx(4 * 0.01 * power_w + 4 * 0.01 * 100)
    assert energy.mean_power_w == pytest.approx((power_w + 100) / 2)
    assert energy.step_kwh == pytest.approx(energy.step_j / 3.6e6)


@given(st.floats(0, 2), st.floats(0, 2))
def test_power_stays_between_idle_and_the_limit(flops_share: float, bandwidth_share: float) -> None:
    assert 100 <= LAW.power_w(flops_share, bandwidth_share) <= 700


def test_only_devices_whose_power_was_measured_have_energy() -> None:
    layout = Parallelism(pp=1, tp=8, dp=8, micro_batch=1, micro_batches=8)
    found = {
        name: Estimator.load(f"hardware:{name}").predict(model=load_model("llama-3-8b"), parallelism=layout)
        for name in ("h200-sxm", "h100-sxm")
    }
    assert found["h100-sxm"].energy is None
    energy = found["h200-sxm"].energy
    assert energy is not None
    law = power_laws()["h200-sxm"]
    assert law.idle_w < energy.mean_power_w < law.limit_w
    assert sum(energy.operators_j.values()) < energy.step_j
    assert abs(law.energy_error) < 0.05
