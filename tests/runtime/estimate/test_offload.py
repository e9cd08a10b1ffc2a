"""States of the optimizer in the host's memory: what an update takes by hand, and what leaves the device."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import Cluster, Estimate, Estimator, ModelConfig, Parallelism, UsageError
from kernelcast.runtime.hardware.fabric import host_link
from kernelcast.runtime.memory.stages import stage_memory

Make = Callable[..., Path]
MODEL = ModelConfig(
    name="tiny", hidden_size=8, sequence_length=4, attention_heads=2, layers=4, vocabulary_size=100
)
ONE = Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=2)
RATES: dict[str, Any] = {"host_link_gb_per_s": 2.0, "host_memory_gb_per_s": 5.0}


def ask(bundle: Path, **layout: Any) -> Estimate:
    return Estimator.load(bundle).predict(
        model=MODEL,
        parallelism=replace(ONE, **layout),
        cluster=Cluster(gpus_per_node=4),
        interval=False,
    )


def test_an_update_by_hand(make_bundle: Make) -> None:
    bundle = make_bundle()
    on_device, on_host, half = (ask(bundle, offload_optimizer=part, **RATES) for part in (0.0, 1.0, 0.5))
    [stage] = on_device.stages
    adam_us = next(row.total_s for row in on_device.operators if row.operator == "adam") * 1e6
    # The made-up operators are in float32: gradients of 4 bytes come at 2 GB/s, fused Adam moves 28 and a copy of 4 at
    # 5 GB/s, and that goes back at 2; a GB/s is 1000 bytes per µs.
    host_us = stage.parameters * (8 / 2000 + 32 / 5000)
    longer_us = (on_host.step_time_s - on_device.step_time_s) * 1e6
    assert longer_us == pytest.approx(host_us - adam_us)
    assert not any(row.operator == "adam" for row in on_host.operators)
    # Half on the device; the host's half comes after it.
    assert any(row.operator == "adam" for row in half.operators)
    half_us = (half.step_time_s - on_device.step_time_s) * 1e6
    assert half_us == pytest.approx(-(-stage.parameters // 2) * (8 / 2000 + 32 / 5000))


def test_every_device_has_its_shard_alone(make_bundle: Make) -> None:
    bundle = make_bundle()

    def host_s(**layout: Any) -> float:
        own, plain = (ask(bundle, **layout, **RATES, offload_optimizer=part) for part in (1.0, 0.0))
        adam_s = next(row.total_s for row in plain.operators if row.operator == "adam")
        return own.step_time_s - plain.step_time_s + adam_s

    whole_s = host_s(zero=0)
    for zero in (1, 2, 3):
        assert host_s(zero=zero, dp=4) == pytest.approx(whole_s / 4, rel=1e-3)


def test_what_leaves_the_device() -> None:
    plain, [part] = stage_memory(MODEL, ONE), stage_memory(MODEL, replace(ONE, offload_optimizer=0.25))
    [whole] = plain
    assert (whole.host_bytes, part.host_bytes) == (0, whole.optimizer_bytes // 4)
    assert part.optimizer_bytes + part.host_bytes == whole.optimizer_bytes
    assert part.total_bytes == whole.total_bytes - part.host_bytes


def test_it_is_said_to_be_computed(make_bundle: Make) -> None:
    [warning] = [
        one for one in ask(make_bundle(), offload_optimizer=0.5, **RATES).warnings if one.kind == "offload"
    ]
    assert str(warning) == (
        "offload_optimizer 0.5: computed, not measured, with 2 GB/s between device and host (as stated) and 5 GB/s for "
        "the host's optimizer (as stated)"
    )
    assert warning.to_dict()["cause"] == "described"


@pytest.mark.parametrize(
    ("rates", "missing"),
    [
        ({"host_memory_gb_per_s": 5.0}, "host_link_gb_per_s is 0, expected the rate between device and host"),
        (
            {"host_link_gb_per_s": 5.0},
            "host_memory_gb_per_s is 0, expected the GB/s that the host's optimizer",
        ),
    ],
)
def test_rates_that_are_not_known(make_bundle: Make, rates: dict[str, float], missing: str) -> None:
    with pytest.raises(UsageError, match=missing):
        ask(make_bundle(), offload_optimizer=1.0, **rates)


def test_links_of_the_device_table() -> None:
    found = [host_link(name) for name in ("NVIDIA H100 80GB HBM3", "NVIDIA GH200 480GB", "unheard of")]
    assert [one and (one.kind, one.bytes_per_s) for one in found] == [
        ("PCIe 5", 64e9),
        ("NVLink-C2C", 450e9),
        None,
    ]


@pytest.mark.parametrize("exposed_share", [0.0, 0.25])
def test_copies_beside_the_passes_of_layers(make_bundle: Make, exposed_share: float) -> None:
    bundle = make_bundle()
    [plain] = stage_memory(MODEL, ONE, dtype="float32")
    [away] = stage_memory(MODEL, replace(ONE, offload_activations=0.5), dtype="float32")
    # One micro-batch of 4 layers is in flight; half of it lies on the host, and two layers' are on their way.
    of_layer = (plain.activations_bytes - away.activations_bytes) / 4 / 0.5
    assert away.host_bytes == plain.activations_bytes - away.activations_bytes
    assert away.working_bytes - plain.working_bytes == pytest.approx(0.5 * 2 * of_layer)

    def passes_us(**change: Any) -> tuple[float, float]:
        durations = ask(bundle, exposed_share=exposed_share, **change).durations
        return float(durations.forward_us[0, 0]), float(durations.backward_us[0, 0])

    alone = passes_us()
    layer = ask(bundle).components
    for link in (1e-3, 0.01, 1.0):
        found = passes_us(offload_activations=0.5, host_link_gb_per_s=link)
        copy_us = 0.5 * of_layer / (link * 1e3)
        for slower, own, of_pass_s in zip(
            found, alone, (layer.layer_forward_s, layer.layer_backward_s), strict=True
        ):
            exposed = max(exposed_share * copy_us, copy_us - of_pass_s * 1e6)
            assert slower - own == pytest.approx(4 * exposed, abs=1e-6)
