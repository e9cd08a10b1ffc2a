"""Operators of inference frameworks from aiconfigurator's Parquet files, one file or a folder.

A file holds one framework and device, sometimes several versions of the framework: the newest one counts of rows with
the same key. `op_name` selects the reader of a row; `latency` is in ms. Source: ai-dynamo/aiconfigurator, collector/.

- GEMM: [m, k] × [k, n] forward. `fp8` has scales per tensor or row, `fp8_block` per block of 128 × 128, `nvfp4` per 16
  entries: separate operators, whose times include the cast of the activations here.
- Casts: `compute_scale` finds the largest entry of a tensor (two bytes read), `scale_matrix` casts it once.
- Linear attention: convolution and scan of prefills; `mamba2` has its convolution alone.
- Context attention: causal prefill of a whole sequence (`step` 0), with keys and values in a paged cache.
- NCCL: nccl-tests with one process for all GPUs of a node, out of place. `message_size` counts the elements of
  nccl-tests' `size`, the larger of a process's two buffers (collector/network/collect_nccl.py). If it were the part of
  one process, all-gathers of 8 GPUs would receive 1,640 to 4,940 GB/s over links of 300 to 900 GB/s.
- MoE: `fused_experts` with given routing. `num_tokens` counts the tokens of the whole expert-parallel group; a device
  computes the pairs of tokens with its experts, tokens · topk / ep with balanced routing.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.store.importers.description import Description, device_named, published
from kernelcast.store.importers.parsed import Parsed, TimedRow
from kernelcast.store.importers.tables import Cells, LeftOut, Malformed, ParquetTable, Skipped

_WHAT = "a table of aiconfigurator"
_COLUMNS = ("framework", "version", "device", "op_name", "kernel_source", "latency")
_DATA: Mapping[str, Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
_FLOATS, _LINEARS, _COLLECTIVES = _DATA["floats"], _DATA["linears"], _DATA["collectives"]
# SGLang scales every row of the activations and every column of the weights (CUTLASS), TensorRT-LLM whole tensors.
_ROW_KERNEL = "sglang_sgl_kernel_fp8_scaled_mm"
_Fields = dict[str, Any]
_BURST: _Fields = {
    "repetition_count": 6,
    "load": Load.BURST,
    "statistic": "6 replays of a CUDA graph after 3 warm-ups",
}
_BURST_OF_ROUTINGS: _Fields = {
    "repetition_count": 1, "load": Load.BURST, "statistic": "1 replay of 5 routings after 1 warm-up"
}  # fmt: skip
_NCCL_LARGEST_OF_100 = 16 * 2**20


class _Run(NamedTuple):
    device: str
    framework: str
    is_collective: bool


class _Versioned(NamedTuple):
    """A usable row, and the version of the framework that was measured."""

    row: TimedRow
    version: str

    @property
    def key(self) -> tuple[object, ...]:
        row = self.row
        return row.of_run, row.operator, row.dtype, row.vector, row.variant


def read_aiconfigurator(
    paths: Sequence[Path],
    *,
    described: Description | None = None,
    commit: str = "",
    strict: bool = False,
) -> Parsed:
    """Read files, and the `*.parquet` of folders.

    Devices per node are the largest number of devices in a collective of the files, unless `described` has them. Errors
    as `read_files`, but a file in a folder that is no such table is a malformed line; UsageError without pyarrow too.
    """
    description = (described or Description()).over(published("aiconfigurator", commit))
    parsed = Parsed(strict=strict)
    read = [(table, _newest(table, parsed)) for table in _tables(paths, parsed)]
    parsed.files = len(read)
    rows = [one.row for _, found in read for one in found]
    if processes := [row.vector[-1] for row in rows if OPERATORS[row.operator].is_collective]:
        description = description.over(Description(fabric={"gpus_per_node": max(processes)}))
    for table, found in read:
        _add_runs(table, found, description, parsed)
    return parsed.checked(paths)


def _tables(paths: Sequence[Path], skipped: Skipped) -> Iterator[ParquetTable]:
    for path in paths:
        if not path.is_dir():
            yield _table(path)
            continue
        files = sorted(path.rglob("*.parquet"))
        if not files:
            raise DataError(f"{path}: no Parquet file in it, expected {_WHAT}")
        for file in files:
            try:
                yield _table(file)
            except DataError as error:
                skipped.malformed(file, 1, str(error).removeprefix(f"{file}: "))


def _table(path: Path) -> ParquetTable:
    table = ParquetTable.read(path)
    table.require(_COLUMNS, _WHAT)
    return table


def _newest(table: ParquetTable, parsed: Parsed) -> list[_Versioned]:
    """The usable rows of the newest version of each key, in the file's order."""
    versions: dict[int, str] = {}

    def convert(cells: Cells) -> list[TimedRow]:
        versions[cells.line] = cells.text("version")
        return [_row(cells)]

    found = [_Versioned(row, versions[row.line]) for row in parsed.read(table, convert)]
    newest: dict[tuple[object, ...], str] = {}
    for one in found:
        known = newest.setdefault(one.key, one.version)
        if _version(one.version) > _version(known):
            newest[one.key] = one.version
    kept = [one for one in found if one.version == newest[one.key]]
    if older := len(found) - len(kept):
        parsed.left_out["of an older version of the framework, measured again with a newer one"] += older
    return kept


def _version(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key of versions: `1.0rc1` before `1.0` before `1.0post1`."""
    parts = re.findall(r"\d+|[a-z]+", text.lower())
    numbers = ((2, int(part), "") if part.isdigit() else (int(part == "post"), 0, part) for part in parts)
    return (*numbers, (0, 1, ""))


def _add_runs(
    table: ParquetTable, rows: Sequence[_Versioned], description: Description, parsed: Parsed
) -> None:
    """Add a run per device and framework, with a separate run of collectives, whose software is NCCL."""
    for run in dict.fromkeys(_Run(*one.row.of_run) for one in rows):
        own = [one for one in rows if one.row.of_run == run]
        versions = sorted({one.version for one in own}, key=_version)
        if run.is_collective:
            stated: dict[str, Any] = {
                "software": {"nccl": versions[-1]},
                "conditions": {"benchmark": "nccl-tests"},
            }
        else:
            stated = {"conditions": {"framework": run.framework, "framework_versions": versions}}
        whole = description.over(Description(hardware=device_named(run.device), **stated))
        fabric = whole.network() if run.is_collective else None
        parsed.add_run("import aiconfigurator", table, whole, (one.row for one in own), fabric=fabric)


def _row(cells: Cells) -> TimedRow:
    op_name = cells.text("op_name")
    if op_name not in _READERS:
        raise LeftOut(f"of {op_name:.60}: no operator for it")
    own = {"direction": Direction.FORWARD, **_BURST, **_READERS[op_name](cells)}
    counted, limit = own.pop("statistic") or own["repetition_count"], ""
    if "power" in cells.cells and "power_limit" in cells.cells:
        limit = f", power limit {cells.positive('power_limit'):.4g} W"
    return TimedRow(
        line=cells.line,
        time_us=cells.positive("latency") * 1e3,
        of_run=_Run(cells.text("device"), cells.text("framework"), op_name in _COLLECTIVES),
        statistic=f"mean of {counted}{limit}",
        power_w=float(f"{cells.positive('power'):.4g}") if "power" in cells.cells else None,
        **own,
    )


def _dtype(name: str) -> str:
    try:
        return _FLOATS[name]
    except KeyError:
        raise LeftOut(f"of {name:.40}: a precision that no operator here has") from None


def _gemm(cells: Cells) -> _Fields:
    dtype, kernel = cells.text("gemm_dtype"), cells.text("kernel_source")
    operator = "gemm_float8_row" if kernel == _ROW_KERNEL else _LINEARS.get(dtype, "gemm")
    shape = cells.wholes("m", "k", "n")
    return {"operator": operator, "dtype": _dtype(dtype), "vector": shape, "variant": kernel}


def _attention(cells: Cells) -> _Fields:
    dtype, cache = cells.text("attn_dtype"), cells.text("kv_cache_dtype")
    if cache not in ("bfloat16", "float16"):
        raise LeftOut(f"of attention with a cache in {cache:.40}: training keeps none")
    if dtype not in ("bfloat16", "float16"):
        raise LeftOut(f"of attention in {dtype:.40}: training computes it in 16 bits")
    if cells.cells.get("window_size", "0") not in ("0", "0.0"):
        raise LeftOut("of attention in a sliding window: no operator for it")
    if cells.cells.get("step", "0") not in ("0", "0.0"):
        raise LeftOut("of attention with a prefix cache: no operator for it")
    cells.multiple("num_heads", "num_key_value_heads")
    shape = cells.wholes("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
    kernel = cells.text("kernel_source")
    return {"operator": "flash_attention", "dtype": dtype, "vector": shape, "variant": kernel}


def _nccl(cells: Cells) -> _Fields:
    dtype, processes = cells.text("nccl_dtype"), cells.whole("num_gpus")
    if dtype not in ("half", "bfloat16"):
        raise LeftOut(f"of NCCL in {dtype:.40}: in-switch sums differ by type, and training sends floats")
    if processes == 1:
        raise LeftOut("of one process alone")
    entries, operator = cells.whole("message_size"), _COLLECTIVES[cells.text("op_name")]
    size_bytes = 2 * entries
    if operator == "all_gather":
        entries, rest = divmod(entries, processes)
        if rest or not entries:
            found = cells.text("message_size")
            raise Malformed(f"message_size: found {found}, expected a multiple of num_gpus")
    return {
        "operator": operator,
        "direction": Direction.ONCE,
        "dtype": {"half": "float16"}.get(dtype, dtype),
        "vector": (entries, 1, processes),
        "variant": "out-of-place",
        "load": Load.NOT_STATED,
        "repetition_count": 100 if size_bytes <= _NCCL_LARGEST_OF_100 else 60,
        "statistic": "",
    }


def _cast(cells: Cells) -> _Fields:
    shape, variant = cells.wholes("m", "k"), cells.text("op_name")
    return {"operator": "float8_cast", "dtype": "bfloat16", "vector": shape, "variant": variant}


def _recurrent(cells: Cells) -> _Fields:
    if cells.text("phase") != "context":
        raise LeftOut("of generated tokens: training has none")
    kernel, shape = cells.text("kernel_source"), cells.wholes("batch_size", "seq_len")
    if kernel == "chunk_gated_delta_rule":
        operator = "gated_delta_rule"
        shape += cells.wholes("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")
    else:
        of_mamba = ("n_groups", "d_state", "nheads", "head_dim")
        of_delta_rule = ("num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim")
        keys, size, heads, width = cells.wholes(
            *(of_mamba if cells.text("op_name") == "mamba2" else of_delta_rule)
        )
        operator, shape = "causal_convolution", (*shape, 2 * keys * size + heads * width)
    return {"operator": operator, "dtype": "bfloat16", "vector": shape, "variant": kernel}


def _moe(cells: Cells) -> _Fields:
    dtype, distribution = cells.text("moe_dtype"), cells.text("distribution")
    element_type, expert_parallel = _dtype(dtype), cells.whole("moe_ep_size")
    width = cells.multiple("inter_size", "moe_tp_size") // cells.whole("moe_tp_size")
    experts = cells.multiple("num_experts", "moe_ep_size") // expert_parallel
    tokens, is_even = cells.whole("num_tokens"), distribution == "balanced"
    if not is_even and expert_parallel > 1:
        raise LeftOut("of unevenly routed experts on several devices: the measured one's rows are not stated")
    pairs = -(-tokens * cells.whole("topk") // expert_parallel)
    scaled = ("block-scaled",) if dtype == "fp8_block" else ()
    uneven = () if is_even else (distribution.replace("_", " "),)
    return {
        "operator": "moe",
        "dtype": element_type,
        "vector": (tokens, pairs, cells.whole("hidden_size"), width, experts),
        "variant": ", ".join((*scaled, cells.text("kernel_source"), *uneven)),
        **(_BURST if is_even else _BURST_OF_ROUTINGS),
    }


_READERS: Mapping[str, Callable[[Cells], _Fields]] = {
    "gemm": _gemm,
    "context_attention": _attention,
    "moe": _moe,
    **dict.fromkeys(("compute_scale", "scale_matrix"), _cast),
    **dict.fromkeys(("mamba2", "gdn"), _recurrent),
    **dict.fromkeys(_COLLECTIVES, _nccl),
}
"""Readers of rows by `op_name`: the fields of a `TimedRow` in which they differ from a forward pass in a burst."""
