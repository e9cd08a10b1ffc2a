"""Measurements that cannot be right."""

from dataclasses import replace
from math import exp
from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint
from kernelcast.runtime.operators import Direction, operator
from kernelcast.store.doubts import IMPOSSIBLE, OUTLIER, count_doubts, doubts_text, find_doubts, flagged
from kernelcast.store.records import Sample

A100 = ComputeFingerprint(kind="cuda", device_name="NVIDIA A100-SXM4-80GB")
GH200 = ComputeFingerprint(kind="cuda", device_name="NVIDIA GH200 120GB")
UNKNOWN = ComputeFingerprint(kind="cuda", device_name="NVIDIA Z9")
NDR = FabricFingerprint(backend="nccl", gpus_per_node=1, nics=("400 Gb/s InfiniBand NDR ×1",))


def sample(name: str, direction: Direction, vector: tuple[int, ...], time_us: float, **more: str) -> Sample:
    return Sample(
        run_id="0" * 32,
        operator=name,
        direction=direction,
        dtype="float16",
        vector=vector,
        time_us=time_us,
        **more,  # type: ignore[arg-type]
    )


def adds(times_us: list[float]) -> list[Sample]:
    """Residual additions of rising size, with these times."""
    return [
        sample("residual_add", Direction.FORWARD, (4, 1024, 512 * (row + 1)), time_us)
        for row, time_us in enumerate(times_us)
    ]


def streaming_us(rows: int) -> list[float]:
    """Times at half of an A100's memory bandwidth, with a launch."""
    return [5 + 3 * 2 * 4 * 1024 * 512 * (row + 1) / 1e6 for row in range(rows)]


def test_a_time_below_a_limit_is_impossible() -> None:
    samples = [sample("gemm", Direction.FORWARD, (4096,) * 3, time_us) for time_us in (400, 500)]
    assert {row: flag for row, (flag, _) in find_doubts(samples, A100, None).items()} == {0: IMPOSSIBLE}
    assert not find_doubts(samples, UNKNOWN, None)


def test_thin_products_near_the_memory_bound_are_no_outliers() -> None:
    def products(thin_us: float) -> list[Sample]:
        sizes = (1024, 2048, 4096)
        thick = [(m, k, n) for m in sizes for k in sizes for n in sizes]
        own = [sample("gemm", Direction.FORWARD, (m, k, n), 2 * m * k * n / 250e6) for m, k, n in thick]
        # 5.4 GB of weights for one row take 2.6 ms to read, as long as some 650 GFLOP.
        return [*own, sample("gemm", Direction.FORWARD, (1, 51200, 52224), thin_us)]

    assert not find_doubts(products(3_000), A100, None)
    assert [flag for flag, _ in find_doubts(products(60_000), A100, None).values()] == [OUTLIER]
    # Nothing is known of this device's memory.
    assert [flag for flag, _ in find_doubts(products(3_000), UNKNOWN, None).values()] == [OUTLIER]


def test_a_flat_time_is_impossible_where_its_large_end_is() -> None:
    sizes = [1 << power for power in range(16, 31)]
    flat = [sample("all_gather", Direction.ONCE, (size, 4, 1), 118 + size % 3) for size in sizes]
    found = find_doubts(flat, GH200, NDR)
    over = [row for row, (_, why) in found.items() if "of a node's network cards" in why]
    alike = [row for row, (_, why) in found.items() if "as for impossible samples" in why]
    # 3 shards of 2 bytes in 118 µs at 50 GB/s are 1e6 entries; what is ten times smaller than five of them is flat.
    assert over == [row for row, size in enumerate(sizes) if size > 1e6]
    assert sorted(alike) == [row for row, size in enumerate(sizes) if size <= 1e6]


def test_a_flat_time_that_is_possible_stays() -> None:
    flat = [sample("all_gather", Direction.ONCE, (1 << power, 4, 1), 118) for power in range(6, 20)]
    assert not find_doubts(flat, GH200, NDR)


def test_a_time_far_from_the_others_is_an_outlier() -> None:
    times_us = streaming_us(30)
    times_us[7] *= 1000
    times_us[20] *= 30
    found = find_doubts(adds(times_us), A100, None)
    assert {row: flag for row, (flag, _) in found.items()} == {7: OUTLIER, 20: OUTLIER}
    assert "where the others suggest" in found[20][1]


def test_a_cluster_of_outliers_does_not_make_the_others_doubtful() -> None:
    times_us = streaming_us(60)
    times_us[10:20] = [time_us * 2000 for time_us in times_us[10:20]]
    found = find_doubts(adds(times_us), A100, None)
    assert sorted(found) == list(range(10, 20))


def test_few_rows_have_no_outliers() -> None:
    times_us = streaming_us(10)
    times_us[3] *= 1000
    assert not find_doubts(adds(times_us), A100, None)


def test_layouts_are_compared_apart() -> None:
    rows = [
        sample("all_reduce", Direction.ONCE, (size, nodes, 1), latency + size / rate)
        for nodes, latency, rate in ((1, 10, 1e5), (64, 1e5, 1e2))
        for size in range(10**6, 10**7, 300_000)
    ]
    assert not find_doubts(rows, UNKNOWN, None)


def test_the_fewest_alike_the_factors_of_work_and_of_time() -> None:
    # 3 shards of 2 bytes per entry at 50 GB/s: 12 ms for 1e8 entries, so 130 µs are impossible; 120 µs for 1e6.
    def alike(sizes: list[int], size: int, time_us: float) -> bool:
        rows = [sample("all_gather", Direction.ONCE, (one, 4, 1), 130) for one in sizes]
        # As many that are possible: a few impossible ones say nothing of the others.
        rest = [sample("all_gather", Direction.ONCE, (10**8, 4, 1), 2e4)] * len(sizes)
        asked = sample("all_gather", Direction.ONCE, (size, 4, 1), time_us)
        found = find_doubts([*rows, asked, *rest], GH200, NDR)
        assert all(row in found for row in range(len(sizes)))
        return len(sizes) in found

    several = [10**8 + row for row in range(6)]
    assert [alike(several[:count], 10**6, 130) for count in (4, 5, 6)] == [False, True, True]
    # Ten times the work of all five, or not of one of them.
    least = 10 * 10**6
    assert alike([least, *several[:4]], 10**6, 130)
    assert not alike([least - 1, *several[:4]], 10**6, 130)
    # A tenth longer or shorter is as long.
    for time_us, expected in ((142.9, True), (143.1, False)):
        assert alike(several, 10**6, time_us) is expected
    assert alike(several, 5 * 10**5, 118.3)
    assert not alike(several, 5 * 10**5, 118.0)


def test_where_most_are_impossible_all_are() -> None:
    def impossible(possible: int, layout: tuple[int, int] = (4, 1)) -> list[int]:
        # 12 ms at least.
        rows = [
            sample("all_gather", Direction.ONCE, (10**8 + row, 4, 1), 5000 + 1000 * row) for row in range(3)
        ]
        rows += [sample("all_gather", Direction.ONCE, (10**8, *layout), 2e4)] * possible
        return sorted(find_doubts(rows, GH200, NDR))

    assert impossible(3) == [0, 1, 2]
    assert impossible(2) == [0, 1, 2, 3, 4]
    # Of another layout nothing is said.
    assert impossible(2, (2, 1)) == [0, 1, 2]
    few = [sample("gemm", Direction.FORWARD, (4096,) * 3, time_us) for time_us in (2, 3, 600)]
    assert find_doubts(few, A100, None)[2] == (IMPOSSIBLE, "2 of 3 such samples are impossible by themselves")


def test_work_without_flops_is_what_is_moved() -> None:
    # Copies of 1e8 to 1e9 bytes cannot take 1 µs, copies of 1e6 bytes at 2 TB/s can, but not where those do.
    sizes = [10**8 * (row + 1) for row in range(6)]
    copies = [sample("copy", Direction.FORWARD, (size // 1000, 1000), 3) for size in (*sizes, 10**6)]
    assert len(find_doubts(copies, A100, None)) == 7
    assert not find_doubts(copies[-1:], A100, None)


def test_a_plateau_stays_impossible_where_it_is_far_from_the_others_too() -> None:
    # Usual times are 200 times what the network allows. 20 ms for 1e7 entries are possible, but alike with others.
    usual = [sample("all_gather", Direction.ONCE, (k * 10**6, 4, 1), 24_000 * k) for k in range(1, 31)]
    flat = [sample("all_gather", Direction.ONCE, (10**9 + row, 4, 1), 20_000) for row in range(5)]
    alone = [sample("all_gather", Direction.ONCE, (10**7, 4, 1), 20_000)]
    assert {row: flag for row, (flag, _) in find_doubts([*usual, *alone], GH200, NDR).items()} == {
        30: OUTLIER
    }
    found = find_doubts([*usual, *flat, *alone], GH200, NDR)
    assert {row: flag for row, (flag, _) in found.items()} == dict.fromkeys(range(30, 36), IMPOSSIBLE)


def powers(count: int, **times: float) -> dict[int, str]:
    """Flags of additions that take exactly 100 µs a row, except that row N takes `rN` times as long."""
    factors = {int(row[1:]): factor for row, factor in times.items()}
    samples = adds([100.0 * (row + 1) * factors.get(row, 1) for row in range(count)])
    return {row: flag for row, (flag, _) in find_doubts(samples, UNKNOWN, None).items()}


def test_how_far_is_far() -> None:
    # Others fit exactly: a factor of ten either way, and the fewest rows that can be judged.
    assert powers(30, r12=9.9) == {}
    far = adds([100.0 * (row + 1) * (20 if row == 12 else 1) for row in range(30)])
    assert find_doubts(far, UNKNOWN, None) == {12: (OUTLIER, "26000 µs, where the others suggest 1300 µs")}
    assert powers(30, r12=10.1) == powers(30, r12=1 / 10.1) == {12: OUTLIER}
    assert powers(30, r12=1 / 9.9) == {}
    assert powers(19, r9=1000) == {}
    assert powers(20, r9=1000) == {9: OUTLIER}


def test_how_far_is_far_among_spread_times() -> None:
    # A third of the times are exact, the others longer or shorter by e^½: half of all are off by ½ or more, which
    # 6 · 1.4826 / 2 = 4.45 makes of that.
    def flags(off: float, unit_us: float) -> list[int]:
        logs = [(row % 3 - 1) / 2 for row in range(81)]
        logs[40] = off
        samples = adds([unit_us * (row + 1) * exp(logs[row]) for row in range(81)])
        return sorted(find_doubts(samples, UNKNOWN, None))

    for unit_us in (1e2, 1e10):
        assert flags(4.4, unit_us) == flags(-4.4, unit_us) == []
        assert flags(4.5, unit_us) == flags(-4.5, unit_us) == [40]


def test_workloads_of_nothing_are_no_outliers() -> None:
    gathers = [sample("all_gather", Direction.ONCE, (4**k, 4, 1), 100.0) for k in range(25)]
    sums = adds([100.0] * 25)
    gathers[0], sums[0] = (replace(rows[0], vector=(0, *rows[0].vector[1:])) for rows in (gathers, sums))
    for rows in (gathers, sums):
        assert not find_doubts(rows, UNKNOWN, None)


def test_features_that_vary_little_count_too() -> None:
    # The same work, from 1000 · 2000 on; and one or two samples, which take 1 or 32 times as long.
    whole = 2**10 * 3**4 * 5**2 * 7 * 11
    thin = [(m, whole // m, 64) for m in range(1000, 2000) if whole % m == 0]
    pairs = [(samples, 1024, 512 * (width + 1)) for width in range(15) for samples in (1, 2)]
    products = [sample("gemm", Direction.FORWARD, one, (one[0] / 1000) ** 8) for one in thin]
    sums = [sample("residual_add", Direction.FORWARD, one, one[2] * 32.0 ** (one[0] - 1)) for one in pairs]
    for rows in (products, sums):
        assert len(rows) >= 20
        assert not find_doubts(rows, UNKNOWN, None)
        rows[9] = replace(rows[9], time_us=12 * (rows[9].time_us or 0))
        assert list(find_doubts(rows, UNKNOWN, None)) == [9]


def test_times_follow_a_curve_of_the_third_degree() -> None:
    # Over the work's logarithm: nothing straight or bent once comes near it, and then a twelvefold time were lost.
    widths = [round(512 * 1.15**row) for row in range(40)]
    size = np.log(widths)
    size = (size - size.mean()) / size.std()
    times_us = 1e4 * np.exp(3 * size**3 + 3 * size**2)

    def flags(factor: float) -> list[int]:
        changed = [*times_us[:20], factor * times_us[20], *times_us[21:]]
        rows = zip(widths, changed, strict=True)
        samples = [sample("residual_add", Direction.FORWARD, (4, 1024, width), us) for width, us in rows]
        return sorted(find_doubts(samples, UNKNOWN, None))

    assert flags(9) == []
    assert flags(12) == [20]


def test_a_curve_bends_to_what_a_straight_line_misses_by_less_than_a_hundred() -> None:
    # Eight of thirty rows that fit exactly otherwise, at the end: below a factor of 10 · 10 they are taken for a curve.
    for factor, wild in ((90, []), (110, list(range(22, 30)))):
        assert sorted(powers(30, **{f"r{row}": factor for row in range(22, 30)})) == wild


def test_what_cannot_be_judged_does_not_hide_the_rest() -> None:
    impossible = {
        "operator": "gemm",
        "direction": Direction.FORWARD,
        "dtype": "float16",
        "variant": "",
        "vector": (4096,) * 3,
        "time_us": 1.0,
    }
    strange: list[dict[str, object]] = [
        {"time_us": None},
        {"operator": "of_a_later_version"},
        {"dtype": "int3"},
        {"operator": "residual_add", "direction": Direction.WEIGHT_GRADIENT},
        {},
    ]
    rows = [SimpleNamespace(**impossible | changed) for changed in strange]
    assert list(find_doubts(rows, A100, None)) == [4]
    # One that its device explains comes before one that nothing does.
    sizes = (1024, 2048, 4096)
    thick = [(m, k, n) for m in sizes for k in sizes for n in sizes]
    products = [sample("gemm", Direction.FORWARD, (m, k, n), 2 * m * k * n / 250e6) for m, k, n in thick]
    thin = sample("gemm", Direction.FORWARD, (1, 51200, 52224), 3_000)
    products[13] = replace(products[13], time_us=products[13].time_us * 1000)
    assert list(find_doubts([thin, *products], A100, None)) == [14]


def test_flags_stay_and_are_counted() -> None:
    impossible = sample("gemm", Direction.FORWARD, (4096,) * 3, 1)
    noisy = replace(impossible, flags=(("unstable", "30 %"),))
    fine = sample("gemm", Direction.FORWARD, (4096,) * 3, 600)
    found = flagged([noisy, fine], A100, None)
    assert [flag for flag, _ in found[0].flags] == [IMPOSSIBLE, "unstable"]
    assert found[1] == fine
    assert flagged(found, A100, None) == found
    counts = count_doubts(one.flags for one in found)
    assert counts == {IMPOSSIBLE: 1, OUTLIER: 0}
    assert doubts_text(counts, 2) == "1 impossible and 0 outliers of 2 samples, which train ignores"
    assert doubts_text(count_doubts([]), 2) == ""
    assert doubts_text({IMPOSSIBLE: 0, OUTLIER: 1}, 1000).startswith(
        "0 impossible and 1 outlier of 1,000 samples"
    )


@given(
    slower=st.lists(st.floats(0.6, 1.6), min_size=20, max_size=60),
    m=st.integers(1, 64),
    device=st.sampled_from([A100, GH200, UNKNOWN]),
)
def test_ordinary_products_are_never_doubtful(
    slower: list[float], m: int, device: ComputeFingerprint
) -> None:
    row = operator("gemm")
    vectors = [(128 * m, 128 * (1 + place), 256 * (1 + place % 7)) for place in range(len(slower))]
    times_us = [
        (
            4
            + row.flops(Direction.FORWARD, vector) / 150e6
            + row.moved_bytes(Direction.FORWARD, vector, 2) / 1e6
        )
        * off
        for vector, off in zip(vectors, slower, strict=True)
    ]
    samples = [
        sample("gemm", Direction.FORWARD, vector, time_us)
        for vector, time_us in zip(vectors, times_us, strict=True)
    ]
    assert not find_doubts(samples, device, None)


@given(st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=80))
def test_any_times_are_looked_at(times_us: list[float]) -> None:
    found = find_doubts(adds(times_us), A100, NDR)
    assert all(why.isprintable() for _, why in found.values())
    # The largest addition at a tenth of what memory allows: nothing that is as short is possible.
    too_short = [row for row, time_us in enumerate(times_us) if time_us < 1e-2 and row >= 7]
    assert {row for row, (flag, _) in found.items() if flag == IMPOSSIBLE} >= set(too_short)
