"""Operators from SimuMax's system files (JSON, configs/system): efficiencies by shape, converted to times.

`accelerator.op.NAME.accurate_efficient_factor` maps a shape to FLOPs / (time · peak); the peak is `tflops`. The source
counts FLOPs as follows (simu_tools/efficency_test):

- `matmul`: 2 · b · m · k · n. All b samples share the weight: one product with b · m rows.
- `group_matmul`: 2 · ng · M · N · K, M rows for each of ng experts.
- `sdp_fwd`, `sdp_bwd`: causal attention counted *without* its mask, 2 and 5 · batch · seq_len² · heads · (qk_head_dim +
  v_head_dim): twice the FLOPs of kernelcast, so that efficiencies above 1 are possible. Unequal head sizes become
  their mean, which has the same FLOPs and bytes.

The keys of a linear's three products are the sizes of each product; their workload vector is the forward product's:

| layout | product | m, k, n of the key |
|---|---|---|
| TN | forward | m, k, n |
| NN | input gradient [m, n] × [n, k] | m, n, k |
| NT | weight gradient [n, m] × [m, k] | n, m, k |

Kernels were called back to back in TransformerEngine, backward passes without the forward pass.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import Direction
from kernelcast.store.importers.description import Description, device_named
from kernelcast.store.importers.parsed import Parsed, TimedRow, read_files
from kernelcast.store.importers.tables import Cells, LeftOut, Malformed, TextFile, read_text_file

_WHAT = "a system of SimuMax"
# The device names of the driver, by the beginning of a system's name.
_DEVICES = {"a100_pcie": "NVIDIA A100 80GB PCIe", "b200": "NVIDIA B200"}


def _read(path: Path, known: Description, parsed: Parsed) -> None:
    file = read_text_file(path)
    system = _system(file)
    description = known.over(_described_by_name(system["sys_name"]))
    _count_fits(system, parsed.left_out)
    parsed.add_run("import simumax", file, description, _rows(file, system["accelerator"]["op"], parsed))


read_simumax = partial(read_files, _read, "simumax")
"""System files. `sys_name` determines the device, if known."""


def _system(file: TextFile) -> dict[str, Any]:
    try:
        system = json.loads(file.text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file.path}: is not JSON ({error!s:.100})") from error
    accelerator = system.get("accelerator") if isinstance(system, dict) else None
    operators = accelerator.get("op") if isinstance(accelerator, dict) else None
    if not isinstance(operators, dict) or not isinstance(system.get("sys_name"), str):
        found = ", ".join(map(str, system)) if isinstance(system, dict) else type(system).__name__
        raise DataError(
            f"{file.path}: is not {_WHAT}: found {found!r:.100}, expected sys_name and accelerator.op"
        )
    return dict(system)


def _described_by_name(name: str) -> Description:
    device = next((device for start, device in _DEVICES.items() if name.lower().startswith(start)), None)
    return Description(hardware=device_named(device) if device else {}, conditions={"benchmark": "SimuMax"})


def _count_fits(system: Mapping[str, Any], left_out: Counter[str]) -> None:
    """Count collectives and memory-bound operators: only fits of their efficiency and latency are published."""
    networks = system.get("networks")
    for network in networks.values() if isinstance(networks, dict) else ():
        operators = network.get("op") if isinstance(network, dict) else None
        fitted = [one for one in operators.values() if "efficient_factor" in one] if operators else []
        left_out["of collectives: fits of efficiency and latency, not measured times"] += len(fitted)
    bandwidth = system["accelerator"].get("bandwidth")
    count = len(bandwidth) if isinstance(bandwidth, dict) else 0
    left_out["of memory-bound operators: fits of efficiency and latency, not measured times"] += count
    for reason in [reason for reason, count in left_out.items() if not count]:
        del left_out[reason]


def _rows(file: TextFile, operators: Mapping[str, Any], parsed: Parsed) -> list[TimedRow]:
    found = []
    for name, table in operators.items():
        factors = table.get("accurate_efficient_factor", {}) if isinstance(table, dict) else None
        if not isinstance(factors, dict):
            parsed.malformed(file.path, _line(file, name, ""), f"{name}: found no table of efficiencies")
        elif not factors:
            parsed.left_out[f"of {name:.40}: a default efficiency, not measured times"] += 1
        elif name not in _TABLES:
            parsed.left_out[f"of {name:.40}: no operator for it"] += len(factors)
        else:
            for key, factor in factors.items():
                line = _line(file, name, key)
                with parsed.row(file.path, line):
                    try:
                        found.append(_row(line, name, key, factor, table.get("tflops")))
                    except Malformed as error:
                        raise Malformed(f"{key}: {error}") from error
    return found


def _row(line: int, name: str, key: str, factor: object, tflops: object) -> TimedRow:
    read, dtype = _TABLES[name]
    cells = Cells(line=line, cells=dict(_cell(part) for part in key.split(",")))
    if factor == 0:
        raise LeftOut(f"of {name} with efficiency 0: not measured")
    operator, direction, vector, variant, flops = read(cells)
    rate = _positive(factor, "efficiency") * _positive(tflops, f"tflops of {name}") * 1e6
    return TimedRow(
        line=line,
        operator=operator,
        direction=direction,
        dtype=dtype,
        vector=vector,
        time_us=flops / rate,
        statistic="mean or median of several",
        variant=variant,
    )


def _cell(part: str) -> tuple[str, str]:
    name, equals, value = part.strip().partition("=")
    if not equals:
        raise Malformed(f"found {part.strip()!r:.40}, expected NAME=VALUE")
    return name, value


def _positive(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise Malformed(f"{name}: found {value!r:.40}, expected a number above 0")
    return float(value)


def _line(file: TextFile, name: str, key: str) -> int:
    start = max(file.text.find(f'"{name}"'), 0)
    return file.text[: max(file.text.find(f'"{key}', start), start)].count("\n") + 1


def _gradients(dtype: str, accumulates: str) -> str:
    """A weight gradient's variant: the type that it is added to or written in."""
    return f"{dtype} gradients" if accumulates == "True" else f"{dtype} gradients, overwritten"


_Workload = tuple[str, Direction, tuple[int, ...], str, float]
"""Operator, direction, vector and variant of a key, and its FLOPs as the source counts them."""


def _matmul(cells: Cells) -> _Workload:
    b, m, k, n = cells.wholes("b", "m", "k", "n")
    flops = 2.0 * b * m * k * n
    match cells.text("layout"):
        case "TN":
            return "gemm", Direction.FORWARD, (b * m, k, n), "", flops
        case "NN":
            return "gemm", Direction.INPUT_GRADIENT, (b * m, n, k), "", flops
        case "NT":
            variant = _gradients(cells.text("out_dtype"), cells.text("accumulate"))
            return "gemm", Direction.WEIGHT_GRADIENT, (b * k, n, m), variant, flops
        case layout:
            raise Malformed(f"layout: found {layout!r:.20}, expected TN, NN or NT")


_STAGES = {
    "fwd": Direction.FORWARD,
    "bwd_grad_act": Direction.INPUT_GRADIENT,
    "bwd_grad_w": Direction.WEIGHT_GRADIENT,
}


def _group_matmul(cells: Cells) -> _Workload:
    vector, direction, variant = (
        cells.wholes("ng", "M", "K", "N"),
        _STAGES[cells.one_of("stage", _STAGES)],
        "",
    )
    if direction is Direction.WEIGHT_GRADIENT:
        variant = _gradients(cells.text("main_grad_dtype"), cells.text("accumulate"))
    return "grouped_gemm", direction, vector, variant, 2.0 * math.prod(vector)


def _attention(direction: Direction, products: int, cells: Cells) -> _Workload:
    batch, length, query, value = cells.wholes("batch", "seq_len", "qk_head_dim", "v_head_dim")
    heads, kv_heads = cells.multiple("head_num", "kv_head_num"), cells.whole("kv_head_num")
    vector = batch, length, heads, kv_heads, (query + value) // 2
    variant = "strided QKV" if cells.cells.get("qkv_contiguous") == "False" else "contiguous QKV"
    flops = products * batch * length**2 * heads * (query + value)
    return "flash_attention", direction, vector, variant, flops


_TABLES: Mapping[str, tuple[Callable[[Cells], _Workload], str]] = {
    "matmul": (_matmul, "bfloat16"),
    "fp8_matmul": (_matmul, "float8_e4m3fn"),
    "group_matmul": (_group_matmul, "bfloat16"),
    "fp8_group_matmul": (_group_matmul, "float8_e4m3fn"),
    "sdp_fwd": (partial(_attention, Direction.FORWARD, 2), "bfloat16"),
    "sdp_bwd": (partial(_attention, Direction.BACKWARD, 5), "bfloat16"),
}
"""Readers of keys and element types by operator of the source."""
