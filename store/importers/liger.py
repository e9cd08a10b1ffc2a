"""Small kernels from Liger-Kernel's benchmarks (CSV, benchmark/data/all_benchmark_data.csv), forward and backward.

Times are medians of Triton's do_bench in ms, with an emptied cache. Sizes are `x_value` and the JSON in
`extra_benchmark_config_str`. `kernel_provider` (liger, torch, huggingface, …) becomes the variant. The benchmarks
(benchmark/scripts) determine the meaning of rows:

- If only `forward` and `full` were measured, backward is their difference, with the flag `DIFFERENCE`: without CUDA
  graphs, a full pass of less than about 0.3 ms is mostly launches on the host.
- `cross_entropy` runs in float32 and `megatron_…` in bfloat16, which their configurations do not state. Liger's forward
  pass of the loss also computes the gradient.
- Backward passes of `megatron_…` include the forward pass and a sum, of `embedding` the generation of random gradients.
- `swiglu` and `geglu` are whole MLPs with their linears, unlike `megatron_swiglu`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from kernelcast.runtime.operators import Direction, Vector
from kernelcast.store.doubts import DIFFERENCE
from kernelcast.store.importers.description import Description, device_named
from kernelcast.store.importers.parsed import Parsed, TimedRow, checked_dtype, read_files
from kernelcast.store.importers.tables import (
    Cells,
    CsvTable,
    LeftOut,
    Malformed,
    Skipped,
    read_text_file,
    whole,
)

_COLUMNS = (
    "kernel_name", "kernel_provider", "kernel_operation_mode", "metric_name", "metric_unit", "x_name", "x_value",
    "y_value_50", "extra_benchmark_config_str", "gpu_name", "liger_version",
)  # fmt: skip
_MODES = ("forward", "backward", "full")


class _Sizes:
    """Sizes of a row: `x_value` by the name `x_name`, and its configuration."""

    def __init__(self, row: Cells) -> None:
        try:
            stated = json.loads(row.text("extra_benchmark_config_str"))
        except (ValueError, RecursionError) as error:
            raise Malformed(f"extra_benchmark_config_str: is not JSON ({error!s:.60})") from error
        if not isinstance(stated, dict):
            raise Malformed("extra_benchmark_config_str: is no JSON object")
        self._texts: dict[str, str] = {
            name: str(value) for name, value in stated.items() if value is not None
        } | {row.text("x_name"): row.text("x_value")}

    def __call__(self, *names: str) -> int:
        """The size by the first of `names` that is stated."""
        for name in names:
            if name in self._texts:
                return whole(self._texts[name], name)
        raise Malformed(f"size {names[0]} is in neither x_name nor extra_benchmark_config_str")

    def has(self, name: str) -> bool:
        return name in self._texts

    def dtype(self, otherwise: str) -> str:
        """The element type by torch's name."""
        return checked_dtype(self._texts.get("dtype", otherwise).removeprefix("torch."))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    """What a benchmark runs; `dtype` is for rows without. `why_forward_only`: why backward is left out."""

    operator: str
    vector: Callable[[_Sizes], Vector]
    dtype: str = ""
    why_forward_only: str = ""


def _tokens(sizes: _Sizes) -> tuple[int, int]:
    return (sizes("B"), sizes("T")) if sizes.has("B") else (1, sizes("BT", "M"))


def _rope(sizes: _Sizes) -> Vector:
    heads, hidden = sizes("num_q_heads"), sizes("H", "hidden_size")
    if hidden % heads:
        raise Malformed(f"hidden size: found {hidden}, expected a multiple of num_q_heads {heads}")
    return 1, sizes("T", "seq_len"), heads, sizes("num_kv_heads"), hidden // heads


def _embedding(sizes: _Sizes) -> Vector:
    b, length = _tokens(sizes)
    return b * length, sizes("V", "vocab_size"), sizes("D", "hidden_size")


_WITH_FORWARD = "includes the forward pass and a sum"
_KERNELS: Mapping[str, _Kernel] = {
    "layer_norm": _Kernel(operator="layer_norm", vector=lambda s: (*_tokens(s), s("N", "hidden_size"))),
    "rms_norm": _Kernel(operator="rms_norm", vector=lambda s: (*_tokens(s), s("H", "hidden_size"))),
    "megatron_rms_norm": _Kernel(
        operator="rms_norm",
        vector=lambda s: (s("B"), s("S"), s("H")),
        dtype="bfloat16",
        why_forward_only=_WITH_FORWARD,
    ),
    "megatron_swiglu": _Kernel(
        operator="swiglu",
        vector=lambda s: (s("B"), s("S"), s("ffn_local")),
        dtype="bfloat16",
        why_forward_only=_WITH_FORWARD,
    ),
    "rope": _Kernel(operator="rope", vector=_rope),
    "cross_entropy": _Kernel(
        operator="cross_entropy",
        vector=lambda s: (*_tokens(s), s("V", "vocab_size")),
        dtype="float32",
    ),
    "embedding": _Kernel(
        operator="embedding",
        vector=_embedding,
        why_forward_only="includes the generation of random gradients",
    ),
    "fused_moe": _Kernel(
        operator="moe",
        vector=lambda s: (s("T"), s("T") * s("K"), s("H"), s("intermediate_dim"), s("E")),
        why_forward_only="has no direction here",
    ),
}


def _read(path: Path, known: Description, parsed: Parsed) -> None:
    table = CsvTable.of(read_text_file(path))
    table.require(_COLUMNS, "a table of Liger-Kernel")
    modes: dict[int, str] = {}
    rows = parsed.read(table, partial(_row, modes))
    for device, version in dict.fromkeys(row.of_run for row in rows):
        conditions = {"benchmark": "Liger-Kernel", "liger_version": version}
        description = known.over(Description(hardware=device_named(device), conditions=conditions))
        own = [row for row in rows if row.of_run == (device, version)]
        parsed.add_run("import liger", table, description, _directions(own, modes, parsed))


read_liger = partial(read_files, _read, "liger")
"""Tables of benchmarks; rows name their device."""


def _check_is_imported(cells: Cells, kernel: str, mode: str) -> None:
    if cells.text("metric_name") != "speed":
        raise LeftOut(f"of {cells.text('metric_name'):.40}: no time")
    if kernel in ("swiglu", "geglu"):
        raise LeftOut(f"of {kernel}: a whole MLP with its linears")
    if kernel not in _KERNELS:
        raise LeftOut(f"of {kernel:.60}: no operator for it")
    if (kernel, cells.text("kernel_provider")) == ("fused_moe", "huggingface"):
        raise LeftOut("of fused_moe by huggingface: a loop over the experts, not one call")
    if cells.text("x_name") == "model_config":
        raise LeftOut(f"of {kernel}: swept over models, whose sizes are not in the row")
    if (why := _KERNELS[kernel].why_forward_only) and mode != "forward":
        raise LeftOut(f"of {kernel} other than forward: {why}")


def _row(modes: dict[int, str], cells: Cells) -> Iterator[TimedRow]:
    """A row, its direction still open; its mode is put into `modes` by its line."""
    kernel, mode = cells.text("kernel_name"), cells.text("kernel_operation_mode")
    _check_is_imported(cells, kernel, mode)
    if (unit := cells.text("metric_unit")) != "ms":
        raise Malformed(f"metric_unit: found {unit!r:.20}, expected 'ms'")
    modes[cells.line] = cells.one_of("kernel_operation_mode", _MODES)
    sizes, known = _Sizes(cells), _KERNELS[kernel]
    yield TimedRow(
        line=cells.line,
        operator=known.operator,
        dtype=sizes.dtype(known.dtype),
        vector=known.vector(sizes),
        variant=cells.text("kernel_provider"),
        time_us=cells.positive("y_value_50") * 1e3,
        statistic="median of several",
        of_run=(cells.text("gpu_name"), cells.text("liger_version")),
    )


def _directions(rows: Iterable[TimedRow], modes: Mapping[int, str], skipped: Skipped) -> Iterator[TimedRow]:
    """Rows forward and backward; full passes less a forward one where backward was not measured alone."""
    points: dict[TimedRow, dict[str, list[TimedRow]]] = {}
    for row in rows:
        key = replace(row, line=0, time_us=0.0)
        points.setdefault(key, {}).setdefault(modes[row.line], []).append(row)
    for found in points.values():
        for mode in ("forward", "backward"):
            yield from (replace(row, direction=Direction(mode)) for row in found.get(mode, ()))
        for full in found.get("full", ()):
            full_us = full.time_us or 0.0
            forward_us = (found["forward"][-1].time_us or 0.0) if "forward" in found else 0.0
            if "backward" in found:
                skipped.left_out["of full passes: backward was measured alone"] += 1
            elif "forward" not in found:
                skipped.left_out["of full passes without a forward one"] += 1
            elif full_us <= forward_us:
                skipped.left_out["of full passes shorter than the forward one"] += 1
            else:
                detail = f"{full_us:.6g} µs of a full pass less {forward_us:.6g} µs forward"
                flags = ((DIFFERENCE, detail),)
                time_us = full_us - forward_us
                yield replace(full, direction=Direction.BACKWARD, time_us=time_us, flags=flags)
