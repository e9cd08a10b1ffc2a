"""What is fitted to small tables, to the digit; WRITE_WHOLE_FITS=1 pytest THIS_FILE writes `whole_fits.txt` again.

Baselines, their figures between and beyond measured layouts, held-out parts, widenings and intervals, rows of other
levels and loads, a prior's corrections; no trees, whose libraries change their rounding.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
from sklearn.dummy import DummyRegressor

from kernelcast.runtime import read_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.bundle.manifest import Peak
from kernelcast.runtime.bundle.regressor_entry import Interval
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.train.baseline import fit_baseline
from kernelcast.train.dataset import Array, Table
from kernelcast.train.distances import held_out_parts, widening_of
from kernelcast.train.formula import INPUTS, tree_inputs
from kernelcast.train.intervals import calibrate, log_half_widths
from kernelcast.train.levels import scaled, with_level_below
from kernelcast.train.loads import by_load
from kernelcast.train.notes import outliers
from kernelcast.train.prior import Prior, corrected, correcting_points, most_telling
from kernelcast.train.regressor import Candidate, Regressor
from kernelcast.train.selection import largest_quarters, typical_errors

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


def of_choices(gemm: Table, gelu: Table) -> Iterator[str]:
    """What errors of candidates come to, and which rows are far off or the largest."""
    table, generator = collective(), np.random.default_rng(5)
    halves = {
        name: np.where(np.arange(len(table)) % 2 == side, table.times_us, np.nan)
        for side, name in enumerate(("data", "model"))
    }
    for name, one in (("gemm", gemm), ("collective", table), ("roles", replace(table, role_times_us=halves))):
        errors = 0.1 * np.abs(generator.standard_normal((3, len(one))))
        errors[1, :2] = np.inf
        errors[2, : len(errors[2]) // 2] = 1e-5
        yield f"typical errors of {name}: {shown(typical_errors(one, errors))}"
        held_out_us = one.times_us * np.exp(0.1 * generator.standard_t(2, len(one)))
        held_out_us[3] = np.nan
        yield f"outliers of {name}: {outliers(one, held_out_us)}"
        quarters = largest_quarters(one.workloads)
        yield f"largest of {name}: {[(q.features, np.flatnonzero(q.rows).tolist()) for q in quarters]}"
    for common in (3, 4, 11, 12, 30):
        own = replace(
            gelu.part(np.arange(common)),
            times_us=1.1 * gelu.times_us[:common] ** 1.02 * np.exp(0.02 * np.cos(np.arange(common))),
            processes_per_node=2,
        )
        lower = scaled(gelu, own, unseen=gelu.workloads[2:4])
        yield f"{common} rows of two levels: {None if lower is None else shown(lower.times_us)}"
        yield f"  together {len(with_level_below(own, gelu, unseen=gelu.workloads[2:4]))}"
        under_load = replace(own, processes_per_node=1, load=Load.SUSTAINED)
        found = by_load([gelu, under_load])
        yield f"  loads {shown(found.ratios)} {[(one.load.value, len(one)) for one in found.tables]} {found.notes}"


def of_priors(
    make_bundle: Callable[..., Path], linear_model: Callable[..., bytes], gelu: Table
) -> Iterator[str]:
    """Regressors of one made-up CPU for another, and of one GPU for another, before and after corrections."""
    cpus = [ComputeFingerprint(kind="cpu", device_name=name, cores=2, threads=1) for name in ("One", "Other")]
    gpus = [
        ComputeFingerprint(kind="cuda", device_name=f"NVIDIA {name}")
        for name in ("A100-SXM4-80GB", "H100 80GB HBM3")
    ]
    model = linear_model([0.0, 0.01, 0.3], 20.0)
    rate = Peak(device="One", dtype="float32", flops_per_s=2e11, source="a test")
    for (one, other), dtype, peaks in (
        (cpus, "float32", ()), (cpus, "float32", (rate,)), (gpus, "bfloat16", ()), (gpus, "float32", ()),
        ((gpus[0], cpus[0]), "float32", ()),
    ):  # fmt: skip
        bundle = read_bundle(make_bundle({"gelu": model}, compute=[one], dtype=dtype))
        if peaks:
            slower = replace(rate, device=one.description, flops_per_s=1e11)
            bundle = replace(bundle, manifest=replace(bundle.manifest, peaks=(slower,)))
        prior = Prior.of(bundle, other, dtype, peaks)
        key = "gelu", Direction.FORWARD
        yield f"prior {prior.scaled_by}: {shown(prior.origin)}, {shown(prior.target)}, {prior.is_comparable}"
        yield f"  carried {shown(prior.carried(key).transfer)} {prior.carried(key).data}"
        few = gelu.workloads[:4]
        yield f"  roofline {shown(prior.roofline_us(key, few))} predicted {shown(prior.predicted_us(key, few))}"
        yield f"  telling {most_telling(prior, [key, ('gelu', Direction.BACKWARD)], gelu.workloads, 5)}"
        for count in (1, 3, 12):
            table = gelu.part(np.arange(count))
            entry = corrected(prior, replace(table, role_times_us={"": table.times_us}), statistic="quiet")
            assert entry.transfer is not None
            yield (
                f"  {correcting_points(entry)} points: {shown(entry.transfer.log_half_width)} "
                f"error {shown(entry.validation_error)} roles {entry.role_errors.keys()} "
                f"weights {shown(entry.transfer.correction and entry.transfer.correction.weights)}"
            )


def test_whole_fits(
    make_table: Callable[..., Table], make_bundle: Callable[..., Path], linear_model: Callable[..., bytes]
) -> None:
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
    gelu = make_table("gelu", count=40, noise=0.05)
    lines += [*of_choices(gemm, gelu), *of_priors(make_bundle, linear_model, gelu)]
    if "WRITE_WHOLE_FITS" in os.environ:
        TEXT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == TEXT.read_text(encoding="utf-8").splitlines()
