"""Systems of SimuMax: three keys of one linear by hand, what is left out, and what can be wrong with a file."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.store import Database
from kernelcast.store.importers import Parsed, read_simumax, store_parsed

FORWARD = "b=1, m=4096, k=8192, n=10240, layout=TN, accumulate=False, out_dtype=bf16"
INPUT_GRADIENT = "b=1, m=4096, k=10240, n=8192, layout=NN, accumulate=False, out_dtype=bf16"
WEIGHT_GRADIENT = "b=1, m=10240, k=4096, n=8192, layout=NT, accumulate=True, out_dtype=fp32"
GROUPED = (
    "ng=20, M=1232, N=3072, K=5120, dtype=bf16, out_dtype=bf16, main_grad_dtype={}, stage={}, grad=True, "
    "accumulate={}, use_split_accumulator=True, single_output=False"
)
ATTENTION = (
    "batch=1, seq_len=4096, head_num=64, kv_head_num=8, qk_head_dim=128, v_head_dim={}, qkv_contiguous={}"
)


def system(folder: Path, *, sys_name: str = "b200_bf16", tflops: object = 2250.0, **operators: Any) -> Path:
    path = folder / "system.json"
    table = {
        name: {"tflops": tflops, "efficient_factor": 0.5, "accurate_efficient_factor": factors}
        for name, factors in operators.items()
    }
    document = {"sys_name": sys_name, "accelerator": {"op": table}, "networks": {"intra_with_pcie": False}}
    path.write_text(json.dumps(document, indent=1))
    return path


def samples(parsed: Parsed) -> list[tuple[str, str, str, tuple[int, ...], float]]:
    return [
        (s.operator, s.direction.value, s.variant, s.vector, round(s.time_us or 0, 3))
        for batch in parsed.runs
        for s in batch.samples
    ]


def test_three_products_of_a_linear_have_the_vector_of_the_forward_one(tmp_path: Path) -> None:
    factors = {FORWARD: 0.5, INPUT_GRADIENT: 0.25, WEIGHT_GRADIENT: 1.0}
    parsed = read_simumax([system(tmp_path, matmul=factors)], strict=True)
    vector, flops = (4096, 8192, 10240), 2 * 4096 * 8192 * 10240
    at_peak_us = round(flops / 2250e6, 3)
    assert samples(parsed) == [
        ("gemm", "forward", "", vector, pytest.approx(2 * at_peak_us, abs=2e-3)),
        ("gemm", "input_gradient", "", vector, pytest.approx(4 * at_peak_us, abs=3e-3)),
        ("gemm", "weight_gradient", "fp32 gradients", vector, at_peak_us),
    ]
    [batch] = parsed.runs
    assert (batch.compute.device_name, batch.samples[0].dtype) == ("NVIDIA B200", "bfloat16")
    assert parsed.left_out == {}


def test_samples_of_a_batch_are_rows_of_one_product(tmp_path: Path) -> None:
    keys = [key.replace("b=1", "b=3") for key in (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)]
    parsed = read_simumax([system(tmp_path, matmul=dict.fromkeys(keys, 0.5))], strict=True)
    assert {vector for _, _, _, vector, _ in samples(parsed)} == {(3 * 4096, 8192, 10240)}
    assert len({time_us for *_, time_us in samples(parsed)}) == 1


def test_grouped_products(tmp_path: Path) -> None:
    factors = {
        GROUPED.format("fp32", "fwd", "False"): 0.5,
        GROUPED.format("fp32", "bwd_grad_act", "False"): 0.5,
        GROUPED.format("bf16", "bwd_grad_w", "True"): 0.5,
    }
    parsed = read_simumax([system(tmp_path, group_matmul=factors)], strict=True)
    time_us = round(2 * 20 * 1232 * 3072 * 5120 / 1125e6, 3)
    vector = (20, 1232, 5120, 3072)
    assert samples(parsed) == [
        ("grouped_gemm", "forward", "", vector, time_us),
        ("grouped_gemm", "input_gradient", "", vector, time_us),
        ("grouped_gemm", "weight_gradient", "bf16 gradients", vector, time_us),
    ]


def test_attention_counts_without_its_mask(tmp_path: Path) -> None:
    key = ATTENTION.format(128, "True")
    path = system(tmp_path, sdp_fwd={key: 0.8715233665672911}, sdp_bwd={key: 0.5})
    parsed = read_simumax([path], strict=True)
    forward, backward = (s for batch in parsed.runs for s in batch.samples)
    assert forward.vector == backward.vector == (1, 4096, 64, 8, 128)
    # 4 · 4096² · 64 · 128 FLOPs at 0.87 of the peak; another source measured 336 µs for the same shape.
    assert forward.time_us == pytest.approx(280.35, abs=0.01)
    assert forward.flops == 2 * 4096**2 * 64 * 128
    assert backward.time_us == pytest.approx(10 * 4096**2 * 64 * 128 / 1125e6, rel=1e-6)
    key = ATTENTION.replace("batch=1", "batch=3").format(64, "True")  # values half as wide as queries
    parsed = read_simumax([system(tmp_path, sdp_fwd={key: 0.8715233665672911})])
    time_us = pytest.approx(3 * 0.75 * 280.35, abs=0.03)
    assert [one[-2:] for one in samples(parsed)] == [((3, 4096, 64, 8, 96), time_us)]


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    path = system(
        tmp_path,
        matmul={INPUT_GRADIENT: 0, FORWARD: 0.5},
        conv={"b=1": 0.5},
        fp8_matmul={},
        sdp_fwd={ATTENTION.format(64, "True"): 0.5},
    )
    document = json.loads(path.read_text())
    document["networks"] = {"intra": {"op": {"all_reduce": {"efficient_factor": 0.7}, "p2p": {"scale": 1}}}}
    document["accelerator"]["bandwidth"] = {"default": {}, "ce": {}}
    path.write_text(json.dumps(document))
    parsed = read_simumax([path], strict=True)
    assert parsed.sample_count == 2
    assert parsed.left_out == {
        "of matmul with efficiency 0: not measured": 1,
        "of fp8_matmul: a default efficiency, not measured times": 1,
        "of conv: no operator for it": 1,
        "of collectives: fits of efficiency and latency, not measured times": 1,
        "of memory-bound operators: fits of efficiency and latency, not measured times": 2,
    }


@pytest.mark.parametrize(
    ("key", "factor", "expected"),
    [
        (FORWARD.replace("TN", "TT"), 0.5, "layout: found 'TT', expected TN, NN or NT"),
        (FORWARD.replace("m=4096", "m=0"), 0.5, "m: found '0', expected a whole number from 1"),
        (FORWARD.replace("m=4096, ", ""), 0.5, "m is empty"),
        (FORWARD.replace("m=4096", "m4096"), 0.5, "found 'm4096', expected NAME=VALUE"),
        (FORWARD.replace("8192", "8193"), -0.5, "efficiency: found -0.5, expected a number above 0"),
        (FORWARD.replace("8192", "8193"), "0.5", "efficiency: found '0.5', expected a number above 0"),
        (FORWARD.replace("8192", "8193"), float("nan"), "efficiency: found nan, expected a number above 0"),
    ],
)
def test_malformed_entries(key: str, factor: object, expected: str, tmp_path: Path) -> None:
    path = system(tmp_path, matmul={FORWARD: 0.5, key: factor})
    parsed = read_simumax([path])
    assert parsed.sample_count == 1
    [problem] = parsed.problems
    assert problem.line == 1 + path.read_text().split(json.dumps(key))[0].count("\n")
    assert str(problem).endswith(expected)
    with pytest.raises(DataError, match="nothing was imported"):
        read_simumax([path], strict=True)


def test_files_that_are_no_system(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for text, expected in (
        ("", "is empty, expected measurements"),
        ("{", "is not JSON"),
        ("[1]", "is not a system of SimuMax: found 'list', expected sys_name and accelerator.op"),
        ('{"a": 1}', "is not a system of SimuMax: found 'a', expected"),
        ('{"sys_name": "b200", "accelerator": {"op": []}}', "is not a system of SimuMax"),
    ):
        path.write_text(text)
        with pytest.raises(DataError) as caught:
            read_simumax([path])
        assert str(caught.value).startswith(f"{path}: {expected}")
    for tflops in ("fast", 0, True, float("inf")):
        odd = system(tmp_path, matmul={FORWARD: 0.5}, tflops=tflops)
        with pytest.raises(DataError, match=f"tflops of matmul: found {tflops!r}, expected a number above 0"):
            read_simumax([odd])
    path.write_text(json.dumps({"sys_name": "b200", "accelerator": {"op": {"conv": 3}}}, indent=1))
    with pytest.raises(DataError, match=r"a\.json:5: conv: found no table of efficiencies"):
        read_simumax([path])
    unknown = system(tmp_path, sys_name="z9", matmul={FORWARD: 0.5})
    with pytest.raises(UsageError, match="give --device-name"):
        read_simumax([unknown])


def test_the_published_systems(real: Path, tmp_path: Path) -> None:
    folder = real / "simumax"
    parsed = read_simumax([folder / "b200_bf16_ceperm.json", folder / "a100_pcie.json"], strict=True)
    counts = Counter(
        (b.compute.device_name, s.operator, s.direction.value) for b in parsed.runs for s in b.samples
    )
    b200, a100 = "NVIDIA B200", "NVIDIA A100 80GB PCIe"
    assert counts[b200, "gemm", "forward"] == counts[b200, "gemm", "input_gradient"] == 144
    assert counts[b200, "gemm", "weight_gradient"] == 144 + 82
    assert counts[b200, "grouped_gemm", "forward"] == 36
    assert counts[b200, "flash_attention", "backward"] == 32
    assert counts[a100, "gemm", "forward"] == 61
    assert sum(counts.values()) == 905
    b200_gemms = [s for s in parsed.runs[0].samples if s.operator == "gemm"]
    of_direction = {
        way: {s.vector for s in b200_gemms if s.direction.value == way and "bf16" not in s.variant}
        for way in ("forward", "input_gradient", "weight_gradient")
    }
    # Every linear was measured in all three ways, which shows that the vectors are derived alike.
    assert of_direction["forward"] == of_direction["input_gradient"] == of_direction["weight_gradient"]
    parsed.keep_variants(["fp32 gradients", "contiguous QKV"])
    with Database.open(tmp_path / "a.db", create=True) as database:
        first, again = store_parsed(database, parsed), store_parsed(database, parsed)
    assert (first.added, again.added, again.already_there) == (905 - 82 - 16 - 26, 0, 781)
    assert not any(first.doubts.values())
