"""Laws of collectives on described fabrics: bounds, monotony, and figures that were measured."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.collectives import Setting, collective_us, least_us, ring_bytes
from kernelcast.runtime.hardware.fabric import (
    BETWEEN_KINDS,
    INSIDE_KINDS,
    TOPOLOGIES,
    Between,
    Fabric,
    Inside,
    fabric_named,
)
from kernelcast.runtime.operators import OPERATORS

COLLECTIVES = tuple(name for name, row in OPERATORS.items() if row.is_collective)
GIB = 2.0**30

shares = st.lists(st.floats(1e-3, 1), min_size=3, max_size=3).map(sorted)
rates = st.floats(1e-5, 1e5)
delays = st.floats(0, 1e6)


@st.composite
def insides(draw: st.DrawFn) -> Inside:
    kind = draw(st.sampled_from(sorted(INSIDE_KINDS)))
    low, usual, high = draw(shares)
    in_switch = draw(st.none() | shares) if kind == "NVSwitch" else None
    return Inside(
        kind=kind,
        gb_per_s=draw(rates),
        latency_us=draw(delays),
        startup_us=draw(delays),
        efficiency=usual,
        efficiency_range=(low, high),
        in_switch_reduction=in_switch is not None,
        in_switch_efficiency=None if in_switch is None else in_switch[1],
        in_switch_range=None if in_switch is None else (in_switch[0], in_switch[2]),
    )


@st.composite
def betweens(draw: st.DrawFn) -> Between:
    low, usual, high = draw(shares)
    return Between(
        kind=draw(st.sampled_from(BETWEEN_KINDS)),
        cards=draw(st.integers(1, 1024)),
        gbit_per_s=draw(rates),
        latency_us=draw(delays),
        startup_us=draw(delays),
        efficiency=usual,
        efficiency_range=(low, high),
        topology=draw(st.sampled_from(TOPOLOGIES)),
        in_network_reduction=draw(st.booleans()),
    )


@st.composite
def settings_of(draw: st.DrawFn) -> Setting:
    devices = draw(st.integers(1, 1024))
    fabric = Fabric(name="any", devices_per_node=devices, inside=draw(insides()), between=draw(betweens()))
    gpus = draw(st.integers(1, devices))
    nodes = draw(st.integers(1 if gpus > 1 else 2, 100_000))
    groups = draw(st.integers(1, max(1, devices // gpus)))
    return Setting(fabric=fabric, nodes=nodes, gpus_per_node=gpus, groups=groups)


@given(
    st.sampled_from(COLLECTIVES), settings_of(), st.lists(st.floats(0, 1e18), min_size=1), st.floats(-1, 1)
)
def test_no_time_is_below_what_the_wire_allows_and_larger_messages_take_longer(
    operator: str, setting: Setting, sizes: list[float], quality: float
) -> None:
    size = np.sort(sizes)
    found = collective_us(operator, size, setting, quality=quality)
    assert np.isfinite(found).all()
    assert (found > 0).all()
    assert (found >= least_us(operator, size, setting)).all()
    assert (np.diff(found) >= -1e-9 * found[1:]).all()


@given(st.sampled_from(COLLECTIVES), settings_of(), st.floats(1, 1e18))
def test_better_fabrics_are_never_slower(operator: str, setting: Setting, size: float) -> None:
    usual = collective_us(operator, [size], setting)
    between, inside = setting.fabric.between, setting.fabric.inside
    assert between is not None
    assert inside is not None
    cards = min(1024, 2 * between.cards)
    for better in (
        replace(setting.fabric, between=replace(between, cards=cards)),
        replace(setting.fabric, between=replace(between, gbit_per_s=2 * between.gbit_per_s)),
        replace(setting.fabric, inside=replace(inside, gb_per_s=2 * inside.gb_per_s)),
    ):
        found = collective_us(operator, [size], replace(setting, fabric=better))
        assert (found <= usual * (1 + 1e-9)).all()
    assert (collective_us(operator, [size], setting, quality=1) <= usual * (1 + 1e-9)).all()
    assert (collective_us(operator, [size], setting, quality=-1) >= usual * (1 - 1e-9)).all()


@given(st.sampled_from(COLLECTIVES), settings_of(), st.floats(1, 1e18))
def test_groups_that_share_the_cards_of_a_node_are_never_faster(
    operator: str, setting: Setting, size: float
) -> None:
    alone = collective_us(operator, [size], replace(setting, groups=1))
    assert (collective_us(operator, [size], setting) >= alone * (1 - 1e-9)).all()


def bus_gb_per_s(operator: str, setting: Setting, size: float) -> float:
    time_us = float(collective_us(operator, [size], setting)[0])
    return float(ring_bytes(operator, np.array([size]), setting.processes)[0]) / time_us / 1e3


def test_a_ring_over_nodes_waits_for_them_in_every_step() -> None:
    """Measured: all-gathers of 512, 1,024 and 8,192 MiB on 10 × 8 H100 (data/nccl-tests)."""
    ring = Setting(fabric=fabric_named("h100-3200g"), nodes=10, gpus_per_node=8)
    shards = np.array([0.5, 1, 8]) * GIB / ring.processes
    assert collective_us("all_gather", shards, ring) == pytest.approx([2395, 4007, 26645], rel=0.1)


def test_a_switch_that_adds_up_beats_the_ring() -> None:
    """Measured: 481 GB/s of bus bandwidth over links of 450 (data/nccl-tests)."""
    node = Setting(fabric=fabric_named("h100-nvswitch"), nodes=1, gpus_per_node=8)
    assert bus_gb_per_s("all_reduce", node, 8 * GIB) == pytest.approx(481, rel=0.05)
    assert float(least_us("all_reduce", [8 * GIB], node)[0]) == pytest.approx(8 * GIB / 450e9 * 1e6)


def test_without_it_the_ring_is_the_bound() -> None:
    node = Setting(fabric=fabric_named("a100-nvswitch"), nodes=1, gpus_per_node=8)
    assert float(least_us("all_reduce", [GIB], node)[0]) == pytest.approx(1.75 * GIB / 300e9 * 1e6)


def test_a_pair_in_a_mesh_has_only_the_links_between_them() -> None:
    """Measured: 75 GB/s for two of four A100, 224 for all four (data/estimate-train-time/Perlmutter)."""
    fabric = fabric_named("perlmutter")
    pair, node = (Setting(fabric=fabric, nodes=1, gpus_per_node=devices) for devices in (2, 4))
    assert bus_gb_per_s("all_reduce", pair, 2 * GIB) == pytest.approx(75, rel=0.05)
    assert bus_gb_per_s("all_reduce", node, 2 * GIB) == pytest.approx(224, rel=0.05)


def test_cards_are_shared_by_the_groups_of_a_node() -> None:
    fabric = fabric_named("h100-800g")
    alone = Setting(fabric=fabric, nodes=2, gpus_per_node=1)
    shared = replace(alone, groups=8)
    assert alone.cards == 1
    assert shared.cards == 0.25
    assert bus_gb_per_s("all_reduce", alone, GIB) > 3.9 * bus_gb_per_s("all_reduce", shared, GIB)


@pytest.mark.parametrize(
    ("fabric", "nodes", "gpus", "expected"),
    [
        ("h100-nvswitch", 2, 8, "layout 2 × 8 spans nodes, and it has no [between]"),
        ("h100-3200g", 1, 16, "layout 1 × 16 has more devices per node than its 8"),
        ("h100-3200g", 1, 1, "layout is 1 × 1, expected at least two processes"),
    ],
)
def test_layouts_that_a_fabric_does_not_have_are_refused(
    fabric: str, nodes: int, gpus: int, expected: str
) -> None:
    with pytest.raises(UsageError) as refused:
        Setting(fabric=fabric_named(fabric), nodes=nodes, gpus_per_node=gpus)
    assert expected in str(refused.value)


def test_what_is_no_collective_is_refused() -> None:
    setting = Setting(fabric=fabric_named("h100-nvswitch"), nodes=1, gpus_per_node=8)
    for name in ("gemm", "nothing"):
        with pytest.raises(UsageError, match="expected a collective"):
            collective_us(name, [1.0], setting)
