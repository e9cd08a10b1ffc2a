"""Rates that devices hold: writes runtime/shipped/sustained.toml from tables of matrix products.

    python datasets/sustained.py            # writes the table
    python datasets/sustained.py --check    # computes it again, and compares

A short product runs at clocks that the power limit does not allow for long. Products of at least 20 ms were repeated
for 180 ms and more, one after the other: their rates no longer depend on how long they take.
"""

import numpy as np
from build import FLOAT8, Tables, write_or_check

from kernelcast.runtime.hardware.devices import device
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.shipped import SUSTAINED

_FOLDER = "aiconfigurator"
TABLES = {
    "a100-sxm": Tables(paths=(f"{_FOLDER}/a100_sxm/gemm/sglang/0.5.10/gemm_perf.parquet",), dtype="bfloat16"),
    "a100-pcie": Tables(paths=("simumax/a100_pcie.json",), dtype="bfloat16"),
    "h100-sxm": Tables(paths=(f"{_FOLDER}/h100_sxm/gemm/sglang/0.5.14/gemm_perf.parquet",), dtype="bfloat16"),
    "b200-sxm": Tables(paths=("simumax/b200_bf16_ceperm.json",), dtype="bfloat16"),
    **{f"{name}-float8": FLOAT8[name] for name in ("h100-sxm", "b200-sxm")},
}
"""Per device, the table whose long products are the slowest. Not Perlmutter's and Vista's, which pause between a few
repetitions; nor vLLM's on H200, whose weights are uninitialized memory, which draws less power."""

SETTLED_US = 20_000.0, 10_000.0
"""Least duration of a product, the preferred one first: the first with enough products in the table. Rates of the B200
still fall between 10 and 20 ms, from a median of 0.49 to 0.47 of the peak; rates of the A100 and the H100 do not."""
FEWEST_ROWS = 10
FEWEST_TOKENS = 1024
"""Of each side of a product: smaller ones are limited by memory."""
LEVEL = 0.9
_HEADER = """\
# FLOP/s that devices hold in matrix products that last, as a share of the peak: nine of ten products of at least 20 ms
# (10 ms where fewer than ten last that long) stay below. In 16 bit, and with -float8 in 8 bit scaled per block, the
# faster of both ways. Written by `make datasets`; rows is how many there are, burst what one in a thousand of the
# shorter products exceeds.
"""


def lines() -> str:
    """The table."""
    text = _HEADER
    for name, tables in TABLES.items():
        in_float8 = name.endswith("-float8")
        peak = device(name.removesuffix("-float8")).flops_per_s["float8" if in_float8 else "bfloat16"]
        law = OPERATORS["gemm_float8_block" if in_float8 else "gemm"]
        samples = [
            one
            for batch in tables.read().runs
            for one in batch.samples
            if one.operator == law.name and one.time_us and min(one.vector) >= FEWEST_TOKENS
        ]
        time_us = np.array([one.time_us for one in samples])
        flops = np.array([law.flops(one.direction, one.vector) for one in samples])
        share = flops / time_us * 1e6 / peak
        settled_us = next(least for least in SETTLED_US if (time_us >= least).sum() >= FEWEST_ROWS)
        is_long = time_us >= settled_us
        text += f"""
[{name}]
share = {np.quantile(share[is_long], LEVEL):.3f}
rows = {is_long.sum()}
burst = {np.quantile(share[~is_long], 0.999):.3f}
source = "{tables.paths[0]}"
"""
    return text


if __name__ == "__main__":
    write_or_check(SUSTAINED, lines())
