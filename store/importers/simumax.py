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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.store.importers.csv_table import CsvRow
from kernelcast.store.importers.description import REPOSITORIES, Description, device_named
from kernelcast.store.importers.parsed import Parsed, imported_sample
from kernelcast.store.importers.text_file import LeftOut, Malformed, Skipped, TextFile, read_text_file
from kernelcast.store.records import Sample

_WHAT = "a system of SimuMax"
# The device names of the driver, by the beginning of a system's name.
_DEVICES = {"a100_pcie": "NVIDIA A100 80GB PCIe", "b200": "NVIDIA B200"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workload:
    """The workload of a key, and its FLOPs as the source counts them."""

    operator: str
    direction: Direction
    vector: tuple[int, ...]
    variant: str
    flops: float


def read_simumax(
    paths: Sequence[Path], *, described: Description | None = None, commit: str = "", strict: bool = False
) -> Parsed:
    """Read system files. `sys_name` determines the device, if known.

    Raises:
        DataError: a file is not such a system, no entry is usable, or, with `strict`, an entry is malformed.
        UsageError: the device is unknown, or `commit` is not a commit.
    """
    known = REPOSITORIES["simumax"].described(commit)
    parsed = Parsed(strict=strict, files=len(paths))
    for path in paths:
        file = read_text_file(path)
        system = _system(file)
        description = (described or Description()).over(known).over(_described_by_name(system["sys_name"]))
        _count_fits(system, parsed.left_out)
        samples = partial(_samples, file, system["accelerator"]["op"], parsed)
        parsed.add_run("import simumax", file, description, samples)
    return parsed.checked(paths)


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


def _samples(file: TextFile, operators: Mapping[str, Any], skipped: Skipped, run_id: str) -> Iterator[Sample]:
    for name, table in operators.items():
        factors = table.get("accurate_efficient_factor", {}) if isinstance(table, dict) else None
        if not isinstance(factors, dict):
            skipped.malformed(file.path, _line(file, name, ""), f"{name}: found no table of efficiencies")
            continue
        if not factors:
            skipped.left_out[f"of {name:.40}: a default efficiency, not measured times"] += 1
        elif name not in _TABLES:
            skipped.left_out[f"of {name:.40}: no operator for it"] += len(factors)
            continue
        for key, factor in factors.items():
            try:
                yield _sample(name, key, factor, table.get("tflops"), run_id)
            except LeftOut as error:
                skipped.left_out[str(error)] += 1
            except Malformed as error:
                skipped.malformed(file.path, _line(file, name, key), f"{key}: {error}")


def _sample(name: str, key: str, factor: object, tflops: object, run_id: str) -> Sample:
    read, dtype = _TABLES[name]
    cells = CsvRow(line=1, cells=dict(_cell(part) for part in key.split(",")))
    if factor == 0:
        raise LeftOut(f"of {name} with efficiency 0: not measured")
    workload = read(cells)
    rate = _positive(factor, "efficiency") * _positive(tflops, f"tflops of {name}") * 1e6
    return imported_sample(
        OPERATORS[workload.operator],
        workload.direction,
        dtype,
        workload.vector,
        run_id=run_id,
        time_us=workload.flops / rate,
        statistic="mean or median of several",
        variant=workload.variant,
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
    return file.text.count("\n", 0, max(file.text.find(f'"{key}', start), start)) + 1


def _gradients(dtype: str, accumulates: str) -> str:
    """A weight gradient's variant: the type that it is added to or written in."""
    return f"{dtype} gradients" if accumulates == "True" else f"{dtype} gradients, overwritten"


def _matmul(row: CsvRow) -> _Workload:
    b, m, k, n = (row.whole(name) for name in ("b", "m", "k", "n"))
    layout, variant = row.text("layout"), ""
    if layout == "TN":
        direction, vector = Direction.FORWARD, (b * m, k, n)
    elif layout == "NN":
        direction, vector = Direction.INPUT_GRADIENT, (b * m, n, k)
    elif layout == "NT":
        direction, vector = Direction.WEIGHT_GRADIENT, (b * k, n, m)
        variant = _gradients(row.text("out_dtype"), row.text("accumulate"))
    else:
        raise Malformed(f"layout: found {layout!r:.20}, expected TN, NN or NT")
    return _Workload(
        operator="gemm", direction=direction, vector=vector, variant=variant, flops=2.0 * b * m * k * n
    )


_STAGES = {
    "fwd": Direction.FORWARD,
    "bwd_grad_act": Direction.INPUT_GRADIENT,
    "bwd_grad_w": Direction.WEIGHT_GRADIENT,
}


def _group_matmul(row: CsvRow) -> _Workload:
    groups, m, k, n = (row.whole(name) for name in ("ng", "M", "K", "N"))
    stage = row.text("stage")
    if stage not in _STAGES:
        raise Malformed(f"stage: found {stage!r:.20}, expected one of {', '.join(_STAGES)}")
    direction, variant = _STAGES[stage], ""
    if direction is Direction.WEIGHT_GRADIENT:
        variant = _gradients(row.text("main_grad_dtype"), row.text("accumulate"))
    return _Workload(
        operator="grouped_gemm",
        direction=direction,
        vector=(groups, m, k, n),
        variant=variant,
        flops=2.0 * groups * m * k * n,
    )


def _attention(direction: Direction, products: int) -> Callable[[CsvRow], _Workload]:
    def read(row: CsvRow) -> _Workload:
        batch, length = row.whole("batch"), row.whole("seq_len")
        sizes = row.whole("qk_head_dim") + row.whole("v_head_dim")
        heads, kv_heads = row.whole("head_num"), row.whole("kv_head_num")
        if heads % kv_heads:
            raise Malformed(f"head_num: found {heads}, expected a multiple of kv_head_num {kv_heads}")
        return _Workload(
            operator="flash_attention",
            direction=direction,
            vector=(batch, length, heads, kv_heads, sizes // 2),
            variant="strided QKV" if row.cells.get("qkv_contiguous") == "False" else "contiguous QKV",
            flops=products * batch * length**2 * heads * sizes,
        )

    return read


_TABLES: Mapping[str, tuple[Callable[[CsvRow], _Workload], str]] = {
    "matmul": (_matmul, "bfloat16"),
    "fp8_matmul": (_matmul, "float8_e4m3fn"),
    "group_matmul": (_group_matmul, "bfloat16"),
    "fp8_group_matmul": (_group_matmul, "float8_e4m3fn"),
    "sdp_fwd": (_attention(Direction.FORWARD, 2), "bfloat16"),
    "sdp_bwd": (_attention(Direction.BACKWARD, 5), "bfloat16"),
}
"""Readers of keys and element types by operator of the source."""
