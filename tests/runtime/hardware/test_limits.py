"""What no operator can be faster than."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kernelcast.runtime.hardware.devices import device
from kernelcast.runtime.hardware.limits import TOLERANCE, limits, node_bytes_per_s
from kernelcast.runtime.operators import OPERATORS, Direction, operator

A100, GH200 = device("a100-sxm"), device("gh200")
FORWARD, BACKWARD, ONCE = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE


def found(
    name: str, direction: Direction, vector: tuple[int, ...], time_us: float, **known: object
) -> list[str]:
    asked = {"dtype": "float16", "element_bytes": 2, "device": A100, **known}
    every = limits(operator(name), direction, vector, **asked)  # type: ignore[arg-type]
    return [why for limit in every if (why := limit.why_impossible(time_us))]


def test_a_product_is_not_faster_than_the_device_multiplies() -> None:
    # 2 · 4096³ FLOPs at 312 TFLOP/s take 440.5 µs.
    assert not found("gemm", FORWARD, (4096, 4096, 4096), 441)
    [why] = found("gemm", FORWARD, (4096, 4096, 4096), 400)
    assert why == (
        "1.374e+11 FLOP in 400 µs are 3.436e+14 FLOP/s, 1.10 times the 3.12e+14 of a NVIDIA A100 SXM4 80 GB in float16"
    )


def test_clocks_are_rounded_so_a_few_percent_are_possible() -> None:
    assert not found("gemm", FORWARD, (4096, 4096, 4096), 441 * (1 - TOLERANCE) + 1)


def test_memory_limits_what_does_not_stay_in_the_cache() -> None:
    # 3 · 2 · 10 MiB are below twice the cache of 40 MiB, ten times as much is not.
    assert not found("residual_add", FORWARD, (1, 1, 10 << 20), 1)
    [why] = found("residual_add", FORWARD, (10, 1, 10 << 20), 200)
    assert "bytes/s, 1.54 times the 2.039e+12 of a NVIDIA A100 SXM4 80 GB's memory" in why


def test_what_a_kernel_can_do_without_is_no_limit() -> None:
    # Both gradients of a product read the output's gradient: together once is enough.
    row = operator("gemm")
    moved = row.moved_bytes(BACKWARD, (10, 20, 30), 2)
    assert row.least_bytes(BACKWARD, (10, 20, 30), 2) == 2 * (2 * 200 + 2 * 600 + 300) < moved


def test_attention_counts_the_mask_that_was_measured() -> None:
    vector = (8, 4096, 40, 40, 128)
    assert not found("flash_attention", BACKWARD, vector, 12_891)
    [why] = found("flash_attention", BACKWARD, vector, 12_891, variant="without mask")
    assert "5.331e+14 FLOP/s, 1.71 times" in why


@pytest.mark.parametrize(
    ("name", "vector", "least_us"),
    [
        # 4 × GH200 on nodes of one: everybody receives three shards of 2e9 bytes at 50 GB/s.
        ("all_gather", (10**9, 4, 1), 120_000),
        # Reduced by the switches, every node sends and receives once.
        ("all_reduce", (10**9, 4, 1), 40_000),
        ("reduce_scatter", (10**9, 4, 1), 30_000),
        ("all_to_all", (10**9, 4, 1), 30_000),
        ("point_to_point", (10**9, 2, 1), 40_000),
    ],
)
def test_a_collective_is_not_faster_than_the_cards_of_a_node(
    name: str, vector: tuple[int, ...], least_us: float
) -> None:
    cards = node_bytes_per_s(("400 Gb/s InfiniBand ×1",))
    assert not found(name, ONCE, vector, least_us, device=GH200, node_bytes_per_s=cards)
    assert found(name, ONCE, vector, 0.9 * least_us, device=GH200, node_bytes_per_s=cards)
    assert not found(name, ONCE, vector, 1, device=GH200)


@pytest.mark.parametrize(
    ("name", "least_us"),
    # An A100's switches do not add up: an all-reduce is a reduce-scatter and an all-gather.
    [("all_gather", 20_000), ("all_reduce", 10_000), ("reduce_scatter", 5000), ("all_to_all", 5000)],
)
def test_a_collective_is_not_faster_than_a_device_s_link(name: str, least_us: float) -> None:
    assert not found(name, ONCE, (10**9, 1, 4), least_us + 1)
    assert found(name, ONCE, (10**9, 1, 4), 0.9 * least_us)


def test_in_switch_reduction_is_possible() -> None:
    assert found("all_reduce", ONCE, (10**9, 1, 8), 0.9 * 2e9 / 450e9 * 1e6, device=device("h100-sxm"))
    # 8.6 GB in 31,227 µs on an H100 node: a bus bandwidth of 481 GB/s over links of 450 GB/s.
    assert not found("all_reduce", ONCE, (8_589_934_592 // 2, 1, 8), 31_226.8, device=device("h100-sxm"))


@given(
    name=st.sampled_from(sorted(name for name, row in OPERATORS.items() if row.is_collective)),
    nodes=st.integers(1, 512),
    gpus=st.integers(1, 16),
)
def test_no_limit_is_above_a_ring(name: str, nodes: int, gpus: int) -> None:
    row = operator(name)
    assume(nodes * gpus > 1)
    assert row.ring_passes is not None
    assert row.wire is not None
    processes = nodes * gpus
    constant, linear, inverse = row.ring_passes
    over_ring = constant + linear * processes + inverse / processes
    over_link, over_cards = row.wire(nodes, gpus)
    assert 0 <= over_link <= over_ring * (1 + 1e-12)
    # A ring crosses every card of a node, so its cards together carry as many times more.
    assert 0 <= over_cards <= gpus * over_ring * (1 + 1e-12)


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        (("400 Gb/sec (4X NDR) InfiniBand ×8",), 400e9),
        (("200 Gb/s Slingshot 11 ×4",), 100e9),
        (("25000 Mb/s Ethernet ×2", "100 Gb/s RoCE"), 18.75e9),
        (("Slingshot",), None),
        ((), None),
    ],
)
def test_rates_of_cards_are_read(cards: tuple[str, ...], expected: float | None) -> None:
    assert node_bytes_per_s(cards) == expected
