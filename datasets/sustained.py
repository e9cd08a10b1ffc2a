"""Rates that devices hold: writes runtime/shipped/sustained.toml from tables of matrix products.

    python datasets/sustained.py            # writes the table
    python datasets/sustained.py --check    # computes it again, and compares

A short product runs at clocks that the power limit does not allow for long. Products of at least 20 ms were repeated
for 180 ms and more, one after the other: their rates no longer depend on how long they take.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from kernelcast.datasets.tables import ROOT, Tables, tables_for, write_or_check
from kernelcast.runtime.hardware.devices import device
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.shipped import SUSTAINED
from kernelcast.store import Sample
from kernelcast.store.importers import Parsed

TABLES = tables_for("sustained")
"""Per device, the table whose long products are the slowest. Not Perlmutter's and Vista's, which pause between a few
repetitions; nor vLLM's on H200, whose weights are uninitialized memory, which draws less power."""

SETTLED_US = 20_000.0, 10_000.0, 4_000.0
"""Least duration of a product, the preferred one first: the first with enough products in the table. Rates of the B200
still fall between 10 and 20 ms, from a median of 0.49 to 0.47 of the peak; rates of the A100 and the H100 do not. The
GB200 takes its power limit in NVFP4 at 4 ms."""
MOST_TOKENS = {"float4_e2m1fn_x2": 8192}
"""Products in NVFP4 with more rows run at 0.65 of the GB200's power limit, and 0.8 of the rate of those with fewer:
what limits them is their kernel, not the clocks."""
FEWEST_ROWS = 10
FEWEST_TOKENS = 1024
"""Of each side of a product: smaller ones are limited by memory."""
LEVEL = 0.9
_HEADER = """\
# FLOP/s that devices hold in matrix products that last, as a share of the peak: nine of ten products of at least 20 ms
# (10 or 4 ms where fewer than ten last that long) stay below. In 16 bit, with -float8 in 8 bit by the faster of the
# measured kernels, and with -float4 in NVFP4. Written by `make datasets`; rows is how many there are, burst what one in
# a thousand of the shorter products exceeds; one row without burst is the fastest product that its maker published.
# power: rates of one chip at two power limits are as the limits to this exponent, the mean over pairs of Blackwell
# devices in 16 and 8 bit; Hopper's is 1: its voltage falls no more.
"""


PAIRS = (("b200-sxm", "gb200"), ("b300-sxm", "gb300"))
"""One chip at two power limits."""
HOPPER = 1.0
"""No chip of Hopper was measured at two limits. At 700 W it multiplies at two thirds of its highest clock, where the
voltage is near its least: what an operation takes stays the same, and the clock goes as the limit. torchtitan's steps
at 500 W decide between this and Blackwell's: they ask for 0.9 to 1.05 (docs/hardware.md, Sustained rates)."""
_PEAKS = {"bfloat16": "bfloat16", "float8_e4m3fn": "float8", "float4_e2m1fn_x2": "nvfp4"}


@cache
def _read(paths: tuple[str, ...]) -> Parsed:
    """Each file is read once, whatever element types count."""
    return Tables(paths=paths).read()


def _products(tables: Tables) -> list[Sample]:
    """The large products of some tables, in all element types."""
    parsed = tables.read() if tables.faster else _read(tables.paths)
    samples = (one for batch in parsed.runs for one in batch.samples)
    return [one for one in samples if one.operator.startswith("gemm") and _is_large(one)]


def _is_large(row: Sample) -> bool:
    return min(row.vector) >= FEWEST_TOKENS and row.vector[0] <= MOST_TOKENS.get(row.dtype, row.vector[0])


def lines() -> str:
    text, rates = _HEADER, {}
    for name, tables in TABLES.items():
        peak = device(re.sub("-float[48]$", "", name)).flops_per_s[_PEAKS[tables.dtype]]
        by_law: dict[str, list[tuple[float, float]]] = {}
        for one in _products(tables):
            law = OPERATORS[one.operator]
            if one.dtype == tables.dtype:
                flops = law.flops(one.direction, one.vector)
                by_law.setdefault(law.name, []).append((one.time_us, flops / one.time_us * 1e6 / peak))
        found = {law: _held(rows) for law, rows in by_law.items()}
        share, rows, burst = max(found.values())
        if rows < FEWEST_ROWS:
            continue  # the nearest device's answers
        rates[name] = share * peak
        text += f"""
[{name}]
share = {share:.3f}
rows = {rows}
burst = {burst:.3f}
source = "{", ".join((tables.paths[0], *tables.faster))}"
"""
    text += "".join(_published())
    exponents = [
        np.log(rates[more + kind] / rates[less + kind]) / np.log(device(more).power_w / device(less).power_w)
        for less, more in PAIRS
        for kind in ("", "-float8")
        if (less != "b200-sxm" or kind) and more + kind in rates
    ]
    return (
        text
        + f"""
[power]
exponent = {np.mean(exponents):.2f}
Hopper = {HOPPER:.2f}
"""
    )


def _published() -> Iterator[str]:
    """Rates that makers state of devices without a table."""
    for name, row in tomllib.loads((ROOT / "tables.toml").read_text(encoding="utf-8"))["published"].items():
        for kind, peak in (("", "bfloat16"), ("-float8", "float8")):
            share = row[peak] * 1e12 / device(name).flops_per_s[peak]
            yield f"""
[{name}{kind}]
share = {share:.3f}
rows = 1
source = "{row["source"]}"
"""


def _held(rows: Sequence[tuple[float, float]]) -> tuple[float, int, float]:
    """The share that long products hold, their number, and the share of bursts, of (time in µs, share of the peak)."""
    time_us, share = np.array(rows).T
    settled_us = next(
        (least for least in SETTLED_US if (time_us >= least).sum() >= FEWEST_ROWS), SETTLED_US[-1]
    )
    is_long = time_us >= settled_us
    if not is_long.any():
        return 0.0, 0, 0.0
    return (
        float(np.quantile(share[is_long], LEVEL)),
        int(is_long.sum()),
        float(np.quantile(share[~is_long], 0.999)),
    )


if __name__ == "__main__":
    write_or_check(SUSTAINED, lines())
