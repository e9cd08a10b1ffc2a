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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from kernelcast.runtime.operators import OPERATORS, Direction, Vector
from kernelcast.store.doubts import DIFFERENCE
from kernelcast.store.importers.csv_table import CsvRow, CsvTable, whole
from kernelcast.store.importers.description import REPOSITORIES, Description, device_named
from kernelcast.store.importers.parsed import Parsed, checked_dtype, imported_sample
from kernelcast.store.importers.text_file import LeftOut, Malformed, Skipped, TextFile, read_text_file
from kernelcast.store.records import Sample

_COLUMNS = (
    "kernel_name",
    "kernel_provider",
    "kernel_operation_mode",
    "metric_name",
    "metric_unit",
    "x_name",
    "x_value",
    "y_value_50",
    "extra_benchmark_config_str",
    "gpu_name",
    "liger_version",
)
_MODES = ("forward", "backward", "full")
_STATISTIC = "median of several"


class _Sizes:
    """Sizes of a row: `x_value` by the name `x_name`, and its configuration."""

    def __init__(self, row: CsvRow) -> None:
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
        """Whether a size is stated."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A time of a workload and mode."""

    line: int
    kernel: str
    provider: str
    mode: str
    dtype: str
    vector: Vector
    time_us: float


def read_liger(
    paths: Sequence[Path], *, described: Description | None = None, commit: str = "", strict: bool = False
) -> Parsed:
    """Read tables of benchmarks; rows name their device.

    Raises:
        DataError: a file is not such a table, no row is usable, or, with `strict`, a row is malformed.
        UsageError: `commit` is not a commit.
    """
    known = (described or Description()).over(REPOSITORIES["liger"].described(commit))
    parsed = Parsed(strict=strict, files=len(paths))
    for path in paths:
        file = read_text_file(path)
        for (device, version), rows in _rows(file, parsed).items():
            conditions: dict[str, Any] = {"benchmark": "Liger-Kernel", "liger_version": version}
            description = known.over(Description(hardware=device_named(device), conditions=conditions))
            parsed.add_run("import liger", file, description, partial(_samples, file, rows, parsed))
    return parsed.checked(paths)


def _rows(file: TextFile, skipped: Skipped) -> dict[tuple[str, str], list[_Row]]:
    """Rows of known kernels by device and version."""
    table = CsvTable(file)
    table.require(_COLUMNS, "a table of Liger-Kernel")
    found: dict[tuple[str, str], list[_Row]] = {}
    for cells in table.rows(skipped):
        with skipped.row(file.path, cells.line):
            if reason := _why_left_out(cells):
                raise LeftOut(reason)
            own = found.setdefault((cells.text("gpu_name"), cells.text("liger_version")), [])
            own.append(_row(cells))
    return {key: rows for key, rows in found.items() if rows}


def _why_left_out(cells: CsvRow) -> str:
    kernel, provider = cells.text("kernel_name"), cells.text("kernel_provider")
    if cells.text("metric_name") != "speed":
        return f"of {cells.text('metric_name'):.40}: no time"
    if kernel in ("swiglu", "geglu"):
        return f"of {kernel}: a whole MLP with its linears"
    if kernel not in _KERNELS:
        return f"of {kernel:.60}: no operator for it"
    if (kernel, provider) == ("fused_moe", "huggingface"):
        return "of fused_moe by huggingface: a loop over the experts, not one call"
    if cells.text("x_name") == "model_config":
        return f"of {kernel}: swept over models, whose sizes are not in the row"
    if (why := _KERNELS[kernel].why_forward_only) and cells.text("kernel_operation_mode") != "forward":
        return f"of {kernel} other than forward: {why}"
    return ""


def _row(cells: CsvRow) -> _Row:
    kernel, mode, unit = (
        cells.text("kernel_name"),
        cells.text("kernel_operation_mode"),
        cells.text("metric_unit"),
    )
    if unit != "ms":
        raise Malformed(f"metric_unit: found {unit!r:.20}, expected 'ms'")
    if mode not in _MODES:
        raise Malformed(f"kernel_operation_mode: found {mode!r:.20}, expected one of {', '.join(_MODES)}")
    sizes, known = _Sizes(cells), _KERNELS[kernel]
    return _Row(
        line=cells.line,
        kernel=kernel,
        provider=cells.text("kernel_provider"),
        mode=mode,
        dtype=sizes.dtype(known.dtype),
        vector=known.vector(sizes),
        time_us=cells.positive("y_value_50") * 1e3,
    )


def _samples(file: TextFile, rows: Sequence[_Row], skipped: Skipped, run_id: str) -> Iterator[Sample]:
    points: dict[_Row, dict[str, list[_Row]]] = {}
    for row in rows:
        key = replace(row, line=0, mode="", time_us=0.0)
        points.setdefault(key, {}).setdefault(row.mode, []).append(row)
    for modes in points.values():
        measured: list[tuple[_Row, tuple[tuple[str, str], ...]]]
        measured = [(row, ()) for mode in ("forward", "backward") for row in modes.get(mode, ())]
        for full in modes.get("full", ()):
            if "backward" in modes:
                skipped.left_out["of full passes: backward was measured alone"] += 1
            elif "forward" not in modes:
                skipped.left_out["of full passes without a forward one"] += 1
            elif (time_us := full.time_us - modes["forward"][-1].time_us) <= 0:
                skipped.left_out["of full passes shorter than the forward one"] += 1
            else:
                detail = f"{full.time_us:.6g} µs of a full pass less {full.time_us - time_us:.6g} µs forward"
                measured.append((replace(full, mode="backward", time_us=time_us), ((DIFFERENCE, detail),)))
        for row, flags in measured:
            with skipped.row(file.path, row.line):
                yield imported_sample(
                    OPERATORS[_KERNELS[row.kernel].operator],
                    Direction(row.mode),
                    row.dtype,
                    row.vector,
                    run_id=run_id,
                    time_us=row.time_us,
                    statistic=_STATISTIC,
                    variant=row.provider,
                    flags=flags,
                )
