"""Tables of aiconfigurator: workloads by hand, what is left out, and what can be wrong with the files."""

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.store import Database
from kernelcast.store.importers import Description, Parsed, read_aiconfigurator, store_parsed

H100 = "NVIDIA H100 80GB HBM3"
COMMON = {"framework": "VLLM", "version": "0.19.0", "device": H100, "latency": 0.0125}
GEMM = COMMON | {
    "op_name": "gemm", "kernel_source": "vllm_default", "gemm_dtype": "bfloat16", "m": 8, "n": 512, "k": 128,
}  # fmt: skip
ATTENTION = COMMON | {
    "op_name": "context_attention", "kernel_source": "vllm_flash_attn", "batch_size": 2, "isl": 64, "num_heads": 16,
    "num_key_value_heads": 4, "head_dim": 128, "beam_width": 1, "attn_dtype": "bfloat16",
    "kv_cache_dtype": "bfloat16", "step": 0, "window_size": 0,
}  # fmt: skip
NCCL = COMMON | {
    "framework": "TRTLLM", "version": "2.27.3", "op_name": "all_gather", "kernel_source": "NCCL",
    "nccl_dtype": "half", "num_gpus": 4, "message_size": 4096,
}  # fmt: skip
MOE = COMMON | {
    "op_name": "moe", "kernel_source": "vllm_fused_moe", "moe_dtype": "bfloat16", "num_tokens": 96, "hidden_size": 64,
    "inter_size": 32, "topk": 2, "num_experts": 8, "moe_tp_size": 2, "moe_ep_size": 4, "distribution": "balanced",
}  # fmt: skip

RECURRENT = COMMON | {"phase": "context", "batch_size": 2, "seq_len": 64}
MAMBA = RECURRENT | {
    "op_name": "mamba2", "kernel_source": "causal_conv1d_fn", "n_groups": 8, "d_state": 128, "nheads": 64,
    "head_dim": 32,
}  # fmt: skip
DELTA = RECURRENT | {
    "op_name": "gdn", "kernel_source": "chunk_gated_delta_rule", "num_k_heads": 4, "num_v_heads": 8, "head_k_dim": 32,
    "head_v_dim": 16,
}  # fmt: skip


def write(path: Path, *rows: Mapping[str, Any], without: Sequence[str] = ()) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = [name for name in rows[0] if name not in without]
    parquet.write_table(pa.table({name: [row[name] for row in rows] for name in columns}), path)
    return path


def samples(parsed: Parsed) -> list[tuple[str, str, str, tuple[int, ...], float | None]]:
    return [
        (s.operator, s.dtype, s.variant, s.vector, s.time_us) for batch in parsed.runs for s in batch.samples
    ]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (GEMM, ("gemm", "bfloat16", "vllm_default", (8, 128, 512))),
        (
            GEMM | {"gemm_dtype": "fp8"},
            ("gemm_float8_tensor", "float8_e4m3fn", "vllm_default", (8, 128, 512)),
        ),
        (
            GEMM | {"gemm_dtype": "fp8_block"},
            ("gemm_float8_block", "float8_e4m3fn", "vllm_default", (8, 128, 512)),
        ),
        (
            GEMM | {"gemm_dtype": "fp8", "kernel_source": "sglang_sgl_kernel_fp8_scaled_mm"},
            ("gemm_float8_row", "float8_e4m3fn", "sglang_sgl_kernel_fp8_scaled_mm", (8, 128, 512)),
        ),
        (GEMM | {"op_name": "scale_matrix"}, ("float8_cast", "bfloat16", "scale_matrix", (8, 128))),
        (
            MOE | {"moe_dtype": "fp8_block", "num_tokens": 3, "topk": 3},  # nine pairs over four devices
            ("moe", "float8_e4m3fn", "block-scaled, vllm_fused_moe", (3, 3, 64, 16, 2)),
        ),
        (ATTENTION, ("flash_attention", "bfloat16", "vllm_flash_attn", (2, 64, 16, 4, 128))),
        # message_size is the gathered whole, and our entries are a shard; elsewhere they are one process's input.
        (NCCL, ("all_gather", "float16", "out-of-place", (1024, 1, 4))),
        (NCCL | {"op_name": "all_reduce"}, ("all_reduce", "float16", "out-of-place", (4096, 1, 4))),
        (NCCL | {"op_name": "reduce_scatter"}, ("reduce_scatter", "float16", "out-of-place", (4096, 1, 4))),
        (NCCL | {"op_name": "alltoall"}, ("all_to_all", "float16", "out-of-place", (4096, 1, 4))),
        # 96 tokens · 2 experts over 4 devices, half of each expert's 32 columns, 2 of 8 experts.
        (MOE, ("moe", "bfloat16", "vllm_fused_moe", (96, 48, 64, 16, 2))),
        (
            MOE | {"distribution": "power_law_1.2", "moe_ep_size": 1},
            ("moe", "bfloat16", "vllm_fused_moe, power law 1.2", (96, 192, 64, 16, 8)),
        ),
        # The convolution runs over keys and queries of all groups (2 · 8 · 128) and all heads' columns (64 · 32).
        (MAMBA, ("causal_convolution", "bfloat16", "causal_conv1d_fn", (2, 64, 4096))),
        (DELTA, ("gated_delta_rule", "bfloat16", "chunk_gated_delta_rule", (2, 64, 4, 8, 32, 16))),
        (
            DELTA | {"kernel_source": "a_convolution"},
            ("causal_convolution", "bfloat16", "a_convolution", (2, 64, 2 * 4 * 32 + 8 * 16)),
        ),
    ],
)
def test_workloads_by_hand(row: dict[str, Any], expected: tuple[object, ...], tmp_path: Path) -> None:
    parsed = read_aiconfigurator([write(tmp_path / "a.parquet", row)], strict=True)
    assert samples(parsed) == [(*expected, pytest.approx(12.5))]
    [batch] = parsed.runs
    [sample] = batch.samples
    assert batch.compute.device_name == H100
    assert batch.compute.memory_gib == 80
    assert {type(size) for size in sample.vector} == {int}
    is_nccl = row["kernel_source"] == "NCCL"
    assert (batch.fabric is not None) == is_nccl
    assert batch.software.nccl == ("2.27.3" if is_nccl else "")
    assert sample.load == ("" if is_nccl else "burst")


@pytest.mark.parametrize(
    ("row", "count"),
    [
        (GEMM, 6),
        (MOE, 6),
        (MOE | {"distribution": "power_law_1.2", "moe_ep_size": 1}, 1),
        (NCCL | {"message_size": 8 * 2**20}, 100),  # halves: 16 MiB, the largest of 100 repetitions
        (NCCL | {"message_size": 8 * 2**20 + 4}, 60),
    ],
)
def test_repetitions(row: dict[str, Any], count: int, tmp_path: Path) -> None:
    [batch] = read_aiconfigurator([write(tmp_path / "a.parquet", row)], strict=True).runs
    assert [sample.repetition_count for sample in batch.samples] == [count]


def test_where_rows_come_from(tmp_path: Path) -> None:
    path = write(tmp_path / "gemm_perf.parquet", GEMM)
    [batch] = read_aiconfigurator([path], commit="095f58a51").runs
    source = batch.run.source
    assert (source.name, source.licence) == ("gemm_perf.parquet", "Apache-2.0")
    assert source.reference == "https://github.com/ai-dynamo/aiconfigurator@095f58a51"
    assert len(source.file_digest) == 64
    assert batch.run.conditions == {"framework": "VLLM", "framework_versions": ["0.19.0"]}
    stated = Description(source={"licence": "CC0-1.0", "reference": "mine"}, fabric={"gpus_per_node": 8})
    nccl = write(tmp_path / "nccl.parquet", NCCL)
    [batch] = read_aiconfigurator([nccl], described=stated).runs
    assert (batch.run.source.licence, batch.run.source.reference) == ("CC0-1.0", "mine")
    assert batch.fabric is not None
    assert batch.fabric.gpus_per_node == 8
    with pytest.raises(UsageError, match=r"^commit: found 'HEAD', expected 7 to 40 hexadecimal digits$"):
        read_aiconfigurator([path], commit="HEAD")


def test_the_largest_collective_of_the_files_is_a_node(tmp_path: Path) -> None:
    rows = [NCCL | {"num_gpus": size, "version": f"2.{size}.1"} for size in (2, 8, 4)]
    [batch] = read_aiconfigurator([write(tmp_path / "nccl.parquet", *rows)], strict=True).runs
    assert batch.fabric is not None
    assert batch.fabric.gpus_per_node == 8
    assert batch.software.nccl == "2.8.1"


def test_power_is_kept_with_the_burst(tmp_path: Path) -> None:
    row = GEMM | {"power": 687.493, "power_limit": 700.0}
    [batch] = read_aiconfigurator([write(tmp_path / "a.parquet", row)], strict=True).runs
    [sample] = batch.samples
    assert (sample.load, sample.power_w, sample.flags) == ("burst", 687.5, ())
    assert sample.statistic == "mean of 6 replays of a CUDA graph after 3 warm-ups, power limit 700 W"


def test_a_burst_is_stored_and_not_counted_as_doubtful(tmp_path: Path) -> None:
    parsed = read_aiconfigurator([write(tmp_path / "a.parquet", GEMM, MOE | GEMM | {"m": 16})])
    with Database.open(tmp_path / "a.db", create=True) as database:
        first, again = store_parsed(database, parsed), store_parsed(database, parsed)
        assert (first.added, first.already_there) == (2, 0)
        assert (again.added, again.already_there) == (0, 2)
        assert not any(first.doubts.values())


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (GEMM | {"gemm_dtype": "int4_wo"}, "of int4_wo: a precision"),
        (ATTENTION | {"kv_cache_dtype": "fp8"}, "of attention with a cache in fp8"),
        (ATTENTION | {"attn_dtype": "fp8"}, "of attention in fp8"),
        (ATTENTION | {"window_size": 128}, "of attention in a sliding window"),
        (ATTENTION | {"step": 5}, "of attention with a prefix cache"),
        (NCCL | {"nccl_dtype": "int8"}, "of NCCL in int8"),
        (NCCL | {"num_gpus": 1}, "of one process alone"),
        (MOE | {"moe_dtype": "int4_wo"}, "of int4_wo: a precision"),
        (MOE | {"distribution": "power_law_1.01", "moe_ep_size": 2}, "of unevenly routed experts"),
        (MAMBA | {"phase": "generation"}, "of generated tokens"),
        (GEMM | {"op_name": "mla_bmm"}, "of mla_bmm: no operator for it"),
    ],
)
def test_what_is_left_out_is_named_and_counted(row: dict[str, Any], reason: str, tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.parquet", row), write(tmp_path / "b.parquet", GEMM)]
    parsed = read_aiconfigurator(paths, strict=True)
    assert parsed.sample_count == 1
    [(found, count)] = parsed.left_out.items()
    assert found.startswith(reason)
    assert count == 1


def test_the_newest_version_of_a_key_counts_and_its_repetitions_stay(tmp_path: Path) -> None:
    rows = [
        GEMM | {"version": "0.9.2", "latency": 0.1},
        GEMM | {"version": "0.10.0", "latency": 0.2},
        GEMM | {"version": "0.10.0", "latency": 0.3},
        GEMM | {"version": "0.10.0rc1", "latency": 0.4},
        GEMM | {"version": "0.10.0post1", "m": 2, "latency": 0.6},
        GEMM | {"version": "0.10.0", "m": 2, "latency": 0.7},
        GEMM | {"version": "0.9.2", "m": 1, "latency": 0.5},
    ]
    parsed = read_aiconfigurator([write(tmp_path / "a.parquet", *rows)])
    assert [time_us for *_, time_us in samples(parsed)] == [200.0, 300.0, 600.0, 500.0]
    assert sum(parsed.left_out.values()) == 3
    assert parsed.runs[0].run.conditions["framework_versions"] == ["0.9.2", "0.10.0", "0.10.0post1"]


def test_one_of_several_kernels_is_kept(tmp_path: Path) -> None:
    rows = [
        ATTENTION,
        ATTENTION | {"kernel_source": "triton"},
        ATTENTION | {"kernel_source": "triton", "isl": 8},
    ]
    paths = [write(tmp_path / "a.parquet", *rows), write(tmp_path / "b.parquet", NCCL)]
    parsed = read_aiconfigurator(paths)
    parsed.keep_variants(["triton"])
    assert [variant for _, _, variant, _, _ in samples(parsed)] == ["triton", "triton", "out-of-place"]
    assert parsed.left_out == {"of flash_attention measured vllm_flash_attn: not a chosen variant": 1}
    with pytest.raises(
        UsageError, match=r"^variant: nothing was measured 'cudnn', found out-of-place; triton$"
    ):
        parsed.keep_variants(["cudnn", "triton", "other"])


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (GEMM | {"latency": math.nan}, "latency: found 'nan', expected a number above 0"),
        (GEMM | {"latency": -0.5}, "latency: found '-0.5', expected a number above 0"),
        (GEMM | {"latency": None}, "latency is empty"),
        (GEMM | {"m": 0}, "m: found '0', expected a whole number from 1"),
        (GEMM | {"device": ""}, "device is empty"),
        (
            ATTENTION | {"num_heads": 6},
            "num_heads: found 6, expected a multiple of num_key_value_heads 4",
        ),
        (NCCL | {"message_size": 4095}, "message_size: found 4095, expected a multiple of num_gpus"),
        (MOE | {"inter_size": 31}, "inter_size: found 31, expected a multiple of moe_tp_size 2"),
    ],
)
def test_malformed_rows(row: dict[str, Any], expected: str, tmp_path: Path) -> None:
    good = {**row, **(GEMM if row["op_name"] == "gemm" else {"m": 1, "latency": 0.5})}
    whole = {"num_heads": 8, "message_size": 4096, "inter_size": 32}
    good |= {name: value for name, value in whole.items() if name in row}
    path = write(tmp_path / "a.parquet", good, {**good, **row})
    parsed = read_aiconfigurator([path])
    assert parsed.sample_count == 1
    [problem] = parsed.problems
    assert str(problem) == f"{path}:2: {expected}"
    with pytest.raises(DataError, match="nothing was imported"):
        read_aiconfigurator([path], strict=True)


def test_files_that_are_no_such_table(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("m,n,k\n1,2,3\n")
    (tmp_path / "lfs.parquet").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    (tmp_path / "nothing.parquet").write_text("")
    (tmp_path / "folder").mkdir()
    without_rows = pa.table({name: pa.array([], pa.string()) for name in GEMM})
    parquet.write_table(without_rows, tmp_path / "empty.parquet")
    write(tmp_path / "other.parquet", {"a": 1, "b": 2})
    for name, expected in (
        ("none.parquet", "no such file"),
        ("text.parquet", "is not a Parquet file"),
        ("lfs.parquet", "is a pointer of Git LFS, expected a Parquet file"),
        ("nothing.parquet", "is not a Parquet file"),
        ("empty.parquet", "is empty, expected measurements"),
        ("other.parquet", "is not a table of aiconfigurator: no column 'framework'; found 'a, b'"),
        ("folder", "no Parquet file in it, expected a table of aiconfigurator"),
    ):
        with pytest.raises(DataError) as caught:
            read_aiconfigurator([tmp_path / name])
        assert str(caught.value).startswith(f"{tmp_path / name}: {expected}")
        assert "\n" not in str(caught.value)


def test_a_folder_is_searched_and_its_odd_files_are_named(tmp_path: Path) -> None:
    write(tmp_path / "data" / "gemm" / "gemm_perf.parquet", GEMM)
    write(tmp_path / "data" / "nccl" / "nccl_perf.parquet", NCCL)
    odd = write(tmp_path / "data" / "odd.parquet", {"a": 1})
    parsed = read_aiconfigurator([tmp_path / "data"])
    assert (parsed.sample_count, parsed.files) == (2, 2)
    assert [str(problem).partition(";")[0] for problem in parsed.problems] == [
        f"{odd}:1: is not a table of aiconfigurator: no column 'framework'"
    ]


def test_a_column_that_a_version_lacks_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", GEMM, without=("k",))
    with pytest.raises(DataError, match=r"a\.parquet:1: no column 'k' \(1 malformed"):
        read_aiconfigurator([path])
    older = write(tmp_path / "b.parquet", ATTENTION, without=("window_size", "step", "beam_width"))
    assert read_aiconfigurator([older], strict=True).sample_count == 1


def test_without_pyarrow_one_line_says_what_to_install(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", GEMM)
    code = "import sys; sys.modules['pyarrow'] = None; from kernelcast.cli.main import main; "
    code += f"main(['import', 'aiconfigurator', {str(path)!r}, '--db', {str(tmp_path / 'a.db')!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "kernelcast: error: pyarrow is not installed: pip install 'kernelcast[parquet]'\n"


def test_the_published_tables(real: Path) -> None:
    folder = real / "aiconfigurator"
    parsed = read_aiconfigurator(
        [folder / "a100_sxm" / "comm", folder / "a100_sxm" / "attention", folder / "h200_sxm" / "attention"],
        strict=True,
    )
    counts = Counter((batch.compute.device_name, s.operator) for batch in parsed.runs for s in batch.samples)
    a100, h200 = "NVIDIA A100-SXM4-80GB", "NVIDIA H200"
    collectives = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    assert {key for key, _ in counts.items()} == {
        (a100, "flash_attention"), (h200, "flash_attention"), *((a100, name) for name in collectives),
    }  # fmt: skip
    assert [counts[a100, name] for name in collectives] == [63] * 4
    assert counts[h200, "flash_attention"] == 9_954
    gathered = [s for b in parsed.runs for s in b.samples if s.operator == "all_gather"]
    largest = max(gathered, key=lambda s: (s.vector[2], s.vector[0]))
    assert largest.vector == (2**28 // 8, 1, 8)
    # Received from seven others: below the 300 GB/s of the links.
    assert largest.time_us is not None
    assert 2 * largest.vector[0] * 7 / largest.time_us / 1e3 == pytest.approx(205.3, abs=0.1)
