"""What a device draws while it multiplies matrices: fits runtime/shipped/power.toml to tables that have power.

    python datasets/power.py            # writes the table
    python datasets/power.py --check    # computes it again, and compares

power = idle + a · share of peak FLOP/s + b · share of peak memory bandwidth, at most the limit; non-negative least
squares.
"""

import numpy as np
from scipy.optimize import nnls

from kernelcast.datasets.tables import ROOT, write_or_check
from kernelcast.runtime.hardware.devices import device
from kernelcast.runtime.shipped import POWER
from kernelcast.store.importers.tables import ParquetTable, Skipped

TABLES = {"h200-sxm": "aiconfigurator/h200_sxm/gemm/vllm/0.22.0/gemm_perf.parquet"}
_BYTES = 2
_HEADER = """\
# What devices draw, in W: idle + of_flops · share of peak FLOP/s + of_bandwidth · share of peak memory bandwidth, at
# most limit. Fitted by `make datasets` to matrix products whose power was measured; energy_error is the error of the
# sum of all rows' energy, median_error the median error of a row's power, as fractions.
"""


def lines() -> str:
    text = _HEADER
    for name, path in TABLES.items():
        of = device(name)
        cells = [
            row
            for row in ParquetTable.read(ROOT / path).rows(Skipped(strict=True))
            if row.text("gemm_dtype") == "bfloat16"
        ]
        m, n, k, time_ms, power_w, limit_w = (
            np.array([float(row.text(column)) for row in cells])
            for column in ("m", "n", "k", "latency", "power", "power_limit")
        )
        time_s = time_ms / 1e3
        columns = np.column_stack(
            [
                np.ones(len(m)),
                2 * m * n * k / time_s / of.flops_per_s["bfloat16"],
                _BYTES * (m * k + k * n + m * n) / time_s / of.memory_bytes_per_s,
            ]
        )
        weights, _ = nnls(columns, power_w)
        fitted_w = np.minimum(columns @ weights, limit_w)
        energy_error = (fitted_w * time_s).sum() / (power_w * time_s).sum() - 1
        text += f"""
[{name}]
idle_w = {weights[0]:.1f}
of_flops_w = {weights[1]:.1f}
of_bandwidth_w = {weights[2]:.1f}
limit_w = {limit_w.max():.1f}
rows = {len(m)}
median_error = {np.median(np.abs(fitted_w / power_w - 1)):.3f}
energy_error = {energy_error:.3f}
source = "ai-dynamo/aiconfigurator, {path.partition("/")[2]}"
"""
    return text


if __name__ == "__main__":
    write_or_check(POWER, lines())
