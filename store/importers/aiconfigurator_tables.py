"""Rows of aiconfigurator's tables as workloads: GEMM, context attention, NCCL, MoE.

`op_name` selects the reader; `latency` is in ms. Source: ai-dynamo/aiconfigurator, collector/.

- GEMM: [m, k] × [k, n] forward. `fp8` has scales per tensor or row, `fp8_block` per block of 128 × 128, `nvfp4` per 16
  entries. They are separate operators; their times include the cast of the activations (`without_casts` takes it off).
- Casts: `compute_scale` finds the largest entry of a tensor (two bytes read), `scale_matrix` casts it once.
- Linear attention: convolution and scan of prefills; `mamba2` has its convolution alone.
- Context attention: causal prefill of a whole sequence (`step` 0), with keys and values in a paged cache.
- NCCL: nccl-tests with one process for all GPUs of a node, out of place. `message_size` counts the elements of
  nccl-tests' `size`, the larger of a process's two buffers (collector/network/collect_nccl.py). If it were the part of
  one process, all-gathers of 8 GPUs would receive 1,640 to 4,940 GB/s over links of 300 to 900 GB/s.
- MoE: `fused_experts` with given routing. `num_tokens` counts the tokens of the whole expert-parallel group; a device
  computes the pairs of tokens with its experts, tokens · topk / ep with balanced routing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernelcast.runtime.operators import Direction
from kernelcast.store.importers.csv_table import CsvRow
from kernelcast.store.importers.text_file import LeftOut, Malformed

COMMON_COLUMNS = ("framework", "version", "device", "op_name", "kernel_source", "latency")
BLOCK_SCALED = "block-scaled"
_BURST = "6 replays of a CUDA graph after 3 warm-ups"
_BURST_OF_ROUTINGS = "1 replay of 5 routings after 1 warm-up"
_NCCL_LARGEST_OF_100 = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a row measured. `burst` describes few repetitions; it is empty where there were many."""

    operator: str
    direction: Direction
    dtype: str
    vector: tuple[int, ...]
    variant: str
    repetitions: int
    burst: str = ""


_FLOATS = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "fp8": "float8_e4m3fn",
    "fp8_block": "float8_e4m3fn",
    "nvfp4": "float4_e2m1fn_x2",
}


def _dtype(name: str) -> str:
    try:
        return _FLOATS[name]
    except KeyError:
        raise LeftOut(f"of {name:.40}: a precision that no operator here has") from None


def _variant(row: CsvRow, dtype: str, *more: str) -> str:
    scaled = (BLOCK_SCALED,) if dtype == "fp8_block" else ()
    return ", ".join((*scaled, row.text("kernel_source"), *more))


_LINEARS = {"fp8": "gemm_float8_tensor", "fp8_block": "gemm_float8_block", "nvfp4": "gemm_float4_block"}
# SGLang scales every row of the activations and every column of the weights (CUTLASS), TensorRT-LLM whole tensors.
_ROW_KERNEL = "sglang_sgl_kernel_fp8_scaled_mm"


def _gemm(row: CsvRow) -> Workload:
    dtype = row.text("gemm_dtype")
    by_row = row.text("kernel_source") == _ROW_KERNEL
    return Workload(
        operator="gemm_float8_row" if by_row else _LINEARS.get(dtype, "gemm"),
        direction=Direction.FORWARD,
        dtype=_dtype(dtype),
        vector=(row.whole("m"), row.whole("k"), row.whole("n")),
        variant=row.text("kernel_source"),
        repetitions=6,
        burst=_BURST,
    )


def _attention(row: CsvRow) -> Workload:
    dtype, cache = row.text("attn_dtype"), row.text("kv_cache_dtype")
    if cache not in ("bfloat16", "float16"):
        raise LeftOut(f"of attention with a cache in {cache:.40}: training keeps none")
    if dtype not in ("bfloat16", "float16"):
        raise LeftOut(f"of attention in {dtype:.40}: training computes it in 16 bits")
    if row.cells.get("window_size", "0") not in ("0", "0.0"):
        raise LeftOut("of attention in a sliding window: no operator for it")
    if row.cells.get("step", "0") not in ("0", "0.0"):
        raise LeftOut("of attention with a prefix cache: no operator for it")
    heads, kv_heads = row.whole("num_heads"), row.whole("num_key_value_heads")
    if heads % kv_heads:
        raise Malformed(f"num_heads: found {heads}, expected a multiple of num_key_value_heads {kv_heads}")
    return Workload(
        operator="flash_attention",
        direction=Direction.FORWARD,
        dtype=dtype,
        vector=(row.whole("batch_size"), row.whole("isl"), heads, kv_heads, row.whole("head_dim")),
        variant=_variant(row, dtype),
        repetitions=6,
        burst=_BURST,
    )


_COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}


def _nccl(row: CsvRow) -> Workload:
    dtype, processes = row.text("nccl_dtype"), row.whole("num_gpus")
    if dtype not in ("half", "bfloat16"):
        raise LeftOut(f"of NCCL in {dtype:.40}: in-switch sums differ by type, and training sends floats")
    if processes == 1:
        raise LeftOut("of one process alone")
    entries, operator = row.whole("message_size"), _COLLECTIVES[row.text("op_name")]
    if operator == "all_gather":
        entries, rest = divmod(entries, processes)
        if rest or not entries:
            raise Malformed(
                f"message_size: found {row.text('message_size')}, expected a multiple of num_gpus"
            )
    size_bytes = 2 * row.whole("message_size")
    return Workload(
        operator=operator,
        direction=Direction.ONCE,
        dtype={"half": "float16"}.get(dtype, dtype),
        vector=(entries, 1, processes),
        variant="out-of-place",
        repetitions=100 if size_bytes <= _NCCL_LARGEST_OF_100 else 60,
    )


def _cast(row: CsvRow) -> Workload:
    return Workload(
        operator="float8_cast",
        direction=Direction.FORWARD,
        dtype="bfloat16",
        vector=(row.whole("m"), row.whole("k")),
        variant=row.text("op_name"),
        repetitions=6,
        burst=_BURST,
    )


def _recurrent(row: CsvRow) -> Workload:
    if row.text("phase") != "context":
        raise LeftOut("of generated tokens: training has none")
    b, length, kernel = row.whole("batch_size"), row.whole("seq_len"), row.text("kernel_source")
    if row.text("op_name") == "mamba2":
        heads, groups = row.whole("nheads"), row.whole("n_groups")
        channels = heads * row.whole("head_dim") + 2 * groups * row.whole("d_state")
    else:
        key_heads, heads = row.whole("num_k_heads"), row.whole("num_v_heads")
        key_size, value_size = row.whole("head_k_dim"), row.whole("head_v_dim")
        channels = 2 * key_heads * key_size + heads * value_size
    is_scan = kernel == "chunk_gated_delta_rule"
    return Workload(
        operator="gated_delta_rule" if is_scan else "causal_convolution",
        direction=Direction.FORWARD,
        dtype="bfloat16",
        vector=(b, length, key_heads, heads, key_size, value_size) if is_scan else (b, length, channels),
        variant=kernel,
        repetitions=6,
        burst=_BURST,
    )


def _moe(row: CsvRow) -> Workload:
    dtype, distribution = row.text("moe_dtype"), row.text("distribution")
    element_type = _dtype(dtype)
    tensor_parallel, expert_parallel = row.whole("moe_tp_size"), row.whole("moe_ep_size")
    tokens, experts, width = row.whole("num_tokens"), row.whole("num_experts"), row.whole("inter_size")
    for name, value, by, divisor in (
        ("inter_size", width, "moe_tp_size", tensor_parallel),
        ("num_experts", experts, "moe_ep_size", expert_parallel),
    ):
        if value % divisor:
            raise Malformed(f"{name}: found {value}, expected a multiple of {by} {divisor}")
    is_even = distribution == "balanced"
    if not is_even and expert_parallel > 1:
        raise LeftOut("of unevenly routed experts on several devices: the measured one's rows are not stated")
    return Workload(
        operator="moe",
        direction=Direction.FORWARD,
        dtype=element_type,
        vector=(
            tokens,
            -(-tokens * row.whole("topk") // expert_parallel),
            row.whole("hidden_size"),
            width // tensor_parallel,
            experts // expert_parallel,
        ),
        variant=_variant(row, dtype, *(() if is_even else (distribution.replace("_", " "),))),
        repetitions=6 if is_even else 1,
        burst=_BURST if is_even else _BURST_OF_ROUTINGS,
    )


TABLES: Mapping[str, Callable[[CsvRow], Workload]] = {
    "gemm": _gemm,
    "context_attention": _attention,
    "moe": _moe,
    "compute_scale": _cast,
    "scale_matrix": _cast,
    "mamba2": _recurrent,
    "gdn": _recurrent,
    **dict.fromkeys(_COLLECTIVES, _nccl),
}
"""Readers of rows by `op_name`."""
