"""Benchmarks of Liger-Kernel: workloads by hand, backward passes by difference, and what can be wrong."""

import csv
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime.errors import DataError
from kernelcast.store import Database
from kernelcast.store.importers import Parsed, read_liger, store_parsed

NORM = {
    "kernel_name": "rms_norm", "kernel_provider": "liger", "kernel_operation_mode": "forward", "metric_name": "speed",
    "metric_unit": "ms", "x_name": "H", "x_label": "hidden size", "x_value": "1024", "y_value_50": "0.5",
    "y_value_20": "0.4", "y_value_80": "0.6", "extra_benchmark_config_str": {"M": 2048, "dtype": "torch.bfloat16"},
    "gpu_name": "NVIDIA A100-SXM4-80GB", "timestamp": "2024-09-03 15:31:39", "liger_version": "0.2.1",
}  # fmt: skip


def named(kernel: str, x_name: str, x_value: int, config: Mapping[str, Any], **more: str) -> dict[str, Any]:
    own = {
        "kernel_name": kernel,
        "x_name": x_name,
        "x_value": str(x_value),
        "extra_benchmark_config_str": config,
    }
    return {**NORM, **own, **more}


def write(path: Path, *rows: Mapping[str, Any]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        for row in rows:
            config = row["extra_benchmark_config_str"]
            text = config if isinstance(config, str) else json.dumps(config)
            writer.writerow({**row, "extra_benchmark_config_str": text})
    return path


def samples(parsed: Parsed) -> list[tuple[str, str, str, str, tuple[int, ...], float | None]]:
    return [
        (s.operator, s.direction.value, s.dtype, s.variant, s.vector, s.time_us)
        for batch in parsed.runs
        for s in batch.samples
    ]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (NORM, ("rms_norm", "bfloat16", (1, 2048, 1024))),
        (
            named("layer_norm", "N", 4096, {"M": 64, "dtype": "torch.float32"}),
            ("layer_norm", "float32", (1, 64, 4096)),
        ),
        (named("cross_entropy", "V", 512, {"B": 8, "T": 64}), ("cross_entropy", "float32", (8, 64, 512))),
        (
            named("embedding", "V", 512, {"B": 8, "T": 64, "D": 32, "dtype": "torch.float32"}),
            ("embedding", "float32", (512, 512, 32)),
        ),
        (
            named("rope", "T", 64, {"hidden_size": 256, "num_q_heads": 4, "num_kv_heads": 2, "dtype": "bfloat16"}),
            ("rope", "bfloat16", (1, 64, 4, 2, 64)),
        ),
        (
            named("rope", "H", 256, {"seq_len": 64, "num_q_heads": 4, "num_kv_heads": 2, "dtype": "bfloat16"}),
            ("rope", "bfloat16", (1, 64, 4, 2, 64)),
        ),
        (named("megatron_rms_norm", "H", 64, {"S": 16, "B": 2}), ("rms_norm", "bfloat16", (2, 16, 64))),
        (named("megatron_swiglu", "ffn_local", 64, {"S": 16, "B": 2}), ("swiglu", "bfloat16", (2, 16, 64))),
        (
            named("fused_moe", "E", 8, {
                "T": 64, "E": None, "H": 32, "intermediate_dim": 16, "K": 2, "dtype": "torch.bfloat16",
            }),
            ("moe", "bfloat16", (64, 128, 32, 16, 8)),
        ),
    ],
)  # fmt: skip
def test_workloads_by_hand(row: dict[str, Any], expected: tuple[object, ...], tmp_path: Path) -> None:
    parsed = read_liger([write(tmp_path / "a.csv", row)], strict=True)
    operator, dtype, vector = expected
    assert samples(parsed) == [(operator, "forward", dtype, "liger", vector, 500.0)]
    [batch] = parsed.runs
    assert batch.compute.device_name == "NVIDIA A100-SXM4-80GB"
    assert batch.run.conditions == {"benchmark": "Liger-Kernel", "liger_version": "0.2.1"}
    assert batch.run.source.licence == "BSD-2-Clause"


def test_backward_is_measured_or_the_difference(tmp_path: Path) -> None:
    def mode(name: str, ms: str, **more: str) -> dict[str, Any]:
        return {**NORM, "kernel_operation_mode": name, "y_value_50": ms, **more}

    rows = [
        mode("full", "1.75"),
        mode("forward", "0.25"),
        mode("forward", "0.5"),  # the later one counts
        mode("forward", "0.5", kernel_provider="huggingface"),
        mode("backward", "0.75", kernel_provider="huggingface"),
        mode("full", "2", kernel_provider="huggingface"),
        mode("full", "2", kernel_provider="torch"),
        mode("forward", "3", x_value="2048"),
        mode("full", "2", x_value="2048"),
    ]
    parsed = read_liger([write(tmp_path / "a.csv", *rows)], strict=True)
    found = {
        (s.variant, s.direction.value, s.vector[-1]): (s.time_us, dict(s.flags))
        for batch in parsed.runs
        for s in batch.samples
    }
    assert found == {
        ("liger", "forward", 1024): (500.0, {}),
        ("liger", "backward", 1024): (
            1250.0,
            {"difference": "1750 µs of a full pass less 500 µs forward"},
        ),
        ("huggingface", "forward", 1024): (500.0, {}),
        ("huggingface", "backward", 1024): (750.0, {}),
        ("liger", "forward", 2048): (3000.0, {}),
    }
    assert parsed.left_out == {
        "of full passes: backward was measured alone": 1,
        "of full passes without a forward one": 1,
        "of full passes shorter than the forward one": 1,
    }


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**NORM, "metric_name": "memory", "metric_unit": "MB"}, "of memory: no time"),
        ({**NORM, "kernel_name": "swiglu"}, "of swiglu: a whole MLP with its linears"),
        ({**NORM, "kernel_name": "kl_div"}, "of kl_div: no operator for it"),
        ({**NORM, "x_name": "model_config", "x_value": "llama"}, "of rms_norm: swept over models"),
        (
            {**NORM, "kernel_name": "fused_moe", "kernel_provider": "huggingface"},
            "of fused_moe by huggingface",
        ),
        (
            {**NORM, "kernel_name": "megatron_rms_norm", "kernel_operation_mode": "backward"},
            "of megatron_rms_norm other than forward: includes the forward pass and a sum",
        ),
    ],
)
def test_what_is_left_out_is_named(row: dict[str, Any], reason: str, tmp_path: Path) -> None:
    parsed = read_liger([write(tmp_path / "a.csv", NORM, row)], strict=True)
    assert parsed.sample_count == 1
    [(found, count)] = parsed.left_out.items()
    assert (found.startswith(reason), count) == (True, 1)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"y_value_50": "nan"}, "y_value_50: found 'nan', expected a number above 0"),
        ({"y_value_50": "-1"}, "y_value_50: found '-1', expected a number above 0"),
        ({"metric_unit": "s"}, "metric_unit: found 's', expected 'ms'"),
        ({"kernel_operation_mode": "both"}, "kernel_operation_mode: found 'both'"),
        ({"x_value": "1024.5"}, "H: found '1024.5', expected a whole number from 1"),
        ({"x_name": "rows"}, "size H is in neither x_name nor extra_benchmark_config_str"),
        ({"extra_benchmark_config_str": "{"}, "extra_benchmark_config_str: is not JSON"),
        ({"extra_benchmark_config_str": "[]"}, "extra_benchmark_config_str: is no JSON object"),
        ({"extra_benchmark_config_str": {"M": 1, "dtype": "int7"}}, "dtype: found 'int7'"),
        ({"gpu_name": ""}, "gpu_name is empty"),
    ],
)
def test_malformed_rows(changed: dict[str, Any], expected: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", NORM, {**NORM, **changed})
    parsed = read_liger([path])
    assert parsed.sample_count == 1
    [problem] = parsed.problems
    assert problem.line == 3
    assert expected in str(problem)
    with pytest.raises(DataError, match="nothing was imported"):
        read_liger([path], strict=True)


def test_files_that_are_no_such_table(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for text, expected in (
        ("", "is empty, expected measurements"),
        ("a,b\n1,2\n", "is not a table of Liger-Kernel: no column 'kernel_name'; found 'a, b'"),
        (",".join(NORM) + "\n", "holds no usable row"),
    ):
        path.write_text(text)
        with pytest.raises(DataError) as caught:
            read_liger([path])
        assert str(caught.value).startswith(f"{path}: {expected}")


def test_the_published_benchmarks(real: Path, tmp_path: Path) -> None:
    parsed = read_liger([real / "liger-kernel" / "all_benchmark_data_part.csv"], strict=True)
    assert parsed.sample_count + sum(parsed.left_out.values()) == 541
    counts = Counter((operator, way) for operator, way, *_ in samples(parsed))
    assert counts["layer_norm", "backward"] == 20
    assert counts["rope", "forward"] == counts["rope", "backward"] == 16
    assert counts["rms_norm", "forward"] == 12 + 15
    flags = Counter(flag for batch in parsed.runs for s in batch.samples for flag, _ in s.flags)
    assert flags == {"difference": 22}
    parsed.keep_variants(["liger"])
    with Database.open(tmp_path / "a.db", create=True) as database:
        first, again = store_parsed(database, parsed), store_parsed(database, parsed)
    assert (first.added, again.added) == (parsed.sample_count, 0)
    assert not any(first.doubts.values())
