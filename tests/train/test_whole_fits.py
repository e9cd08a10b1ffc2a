"""What is fitted to small tables, to the digit; WRITE_WHOLE_FITS=1 pytest THIS_FILE writes `whole_fits.txt` again.

Baselines, their figures between and beyond measured layouts, held-out parts, widenings and intervals; no trees, whose
libraries change their rounding.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
from sklearn.dummy import DummyRegressor

from kernelcast.runtime.bundle.regressor_entry import Interval
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.train.baseline import fit_baseline
from kernelcast.train.dataset import Array, Table
from kernelcast.train.distances import held_out_parts, widening_of
from kernelcast.train.formula import INPUTS, tree_inputs
from kernelcast.train.intervals import calibrate, log_half_widths
from kernelcast.train.regressor import Candidate, Regressor

TEXT = Path(__file__).with_name("whole_fits.txt")
LAYOUTS = ((1, 2, 30), (1, 4, 24), (2, 4, 12), (4, 1, 5))


def collective() -> Table:
    """All-reduces of four layouts, with noise that grows with the layout; one has few rows."""
    generator, rows, times_us = np.random.default_rng(1), [], []
    for nodes, gpus, count in LAYOUTS:
        for entries in np.geomspace(3, 3e8, count).round():
            rows.append((entries, nodes, gpus))
            exact_us = 8.0 * nodes + entries * (0.5 + nodes) * 1e-4
            times_us.append(exact_us * np.exp(0.05 * nodes * generator.standard_normal()))
    return Table(
        operator="all_reduce", direction=Direction.ONCE, workloads=np.array(rows), times_us=np.array(times_us)
    )


def shown(value: object) -> str:
    if is_dataclass(value):
        return " ".join(f"{one.name}={shown(getattr(value, one.name))}" for one in fields(value))
    if isinstance(value, (tuple, list, np.ndarray)):
        return f"({' '.join(map(shown, value))})"
    return f"{value:.5g}" if isinstance(value, (float, np.floating)) else str(value)


def of_table(table: Table, forms: tuple[str, ...], far: list[tuple[float, ...]]) -> Iterator[str]:
    yield f"{table.operator} {table.direction}, {len(table)} rows"
    for form in forms:
        found = fit_baseline(form, table.law, table.direction, table.workloads, table.times_us)
        yield f"  {form}: {shown(found)}"
        workloads = np.array(far)
        yield f"    at {shown(workloads)}: {shown(np.exp(found.predict_log(workloads)))} µs"
        if form == "latency_bandwidth":
            yield f"    spreads {shown(found.residual_scale(workloads)[:, 0])}"

    def fitted(rows: Array) -> Regressor:
        part = table.part(rows)
        baseline = fit_baseline(forms[-1], part.law, part.direction, part.workloads, part.times_us)
        zero = DummyRegressor(strategy="constant", constant=0.0).fit(part.workloads, part.times_us)
        candidate = Candidate(algorithm="none", form=forms[-1], hyperparameters={})
        return Regressor(candidate=candidate, operator=part.operator, baseline=baseline, trees=zero)

    parts = held_out_parts(table, fitted)
    for part in parts:
        yield f"  held out: {part.kind} {shown(part.rows)} doublings {shown(part.doublings)} off {shown(part.off)}"
    interval = Interval.of_all(0.05)
    for some in (parts, parts[:1], [part for part in parts if part.kind == "layout"], ()):
        yield f"  widening by {len(some)}: {shown(widening_of(table, interval, some))}"


def test_whole_fits(make_table: Callable[..., Table]) -> None:
    law = ("raw", "power_law", "roofline")
    gemm = make_table("gemm", count=24, noise=0.1)
    roles = np.arange(24) % 3
    gemm.role_times_us.update(
        {
            name: np.where(roles != number, gemm.times_us, np.nan)
            for number, name in enumerate(("qkv", "mlp_up"))
        }
    )
    lines = [
        *of_table(gemm, law, [(1, 1, 1), (600, 700, 800), (1e5, 1e5, 1e5)]),
        *of_table(make_table("gelu", count=40, noise=0.05), law, [(1, 1, 1), (1e4, 1e4, 1e4)]),
        *of_table(collective(), ("roofline", "latency_bandwidth"),
                  [(1e6, 1, 2), (1, 1, 4), (1e9, 2, 4), (1e9, 4, 1), (4.5e8, 1, 2), (2e5, 1, 8), (2e5, 8, 4)]),
    ]  # fmt: skip
    for count in (19, 20, 179, 180, 400):
        table = make_table("gelu", count=count)
        sizes = table.workloads.prod(axis=1)
        scale = np.where(sizes > np.median(sizes), 0.3, 0.02)
        off = np.exp(scale * np.random.default_rng(2).standard_normal(count))
        lines.append(f"interval of {count} rows: {shown(calibrate(table, table.times_us * off, seed=3))}")
    table = collective()
    scale = np.where(table.in_layout((1, 2)), 0.02, 0.4)
    off = np.exp(scale * np.random.default_rng(4).standard_normal(len(table)))
    off[-1] = np.nan
    by_layout = calibrate(table, table.times_us * off, seed=3)
    lines.append(f"interval of layouts: {shown(by_layout)}")
    lines.append(f"  half-widths {shown(log_half_widths(by_layout.interval, table.workloads[::6]))}")
    for operator, row in (("all_reduce", (2.0**19 + 2**18 + 300, 2, 4)), ("gemm", (300.0, 5000, 129))):
        for kind in INPUTS:
            inputs = tree_inputs(np.array([row]), OPERATORS[operator], kind)[0].tolist()
            lines.append(f"{kind} of {operator}: {' '.join(f'{one:.7g}' for one in inputs)}")
    if "WRITE_WHOLE_FITS" in os.environ:
        TEXT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == TEXT.read_text(encoding="utf-8").splitlines()
