"""How accurate and how large the regressors of the method's authors' own measurements are, compared with theirs.

DIR is a site's folder of `estimate-train-time` (as `kernelcast import estimate-train-time` reads it). Imports it,
trains, and prints per role and direction: our error on held-out rows, the error that the authors published, and that
of a plain RandomForest on the role's rows alone, with the raw workload vector and the time as target, on five 80/20
splits; then means, collectives by layout, size, loading and training time. Roles have the names of the paper's Table I.
"""

import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from sklearn.ensemble import RandomForestRegressor
from sklearn.model_selection import KFold

from kernelcast.benchmarks.harness import Bench, script
from kernelcast.docs.markdown import table
from kernelcast.runtime.operators import role_name
from kernelcast.store import Database
from kernelcast.store.importers import read_estimate_train_time, store_parsed
from kernelcast.train.fit import DEFAULT_SEED, Trained, train_bundle
from kernelcast.train.report.figures import OperatorFigures, RoleFigures, TrainingFigures, figures
from kernelcast.train.report.reference import Reference
from kernelcast.train.selection import Selected, relative_errors

# scikit-learn's own defaults, as most of the authors' forests have them.
PLAIN_TREES = 100
LOADS = 3


def load(bundle: str) -> dict[str, float]:
    """Run in a process of its own: what loading every model costs beyond the imports."""
    from kernelcast.runtime.answers.predictor import Predictor
    from kernelcast.runtime.bundle.file import read_bundle

    before, start = _resident_bytes(), time.perf_counter()
    read = read_bundle(Path(bundle))
    predictor = Predictor(read)
    for (operator, direction), entry in read.entries.items():
        predictor.predict_us(operator, direction, [[low for low, _ in entry.training_range]])
    return {"seconds": time.perf_counter() - start, "bytes": _resident_bytes() - before}


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def train(directory: Path, folder: Path, seed: int) -> tuple[Trained, float, float]:
    """Import and train in a folder; answers also the seconds that each took."""
    start = time.perf_counter()
    with Database.open(folder / "published.db", create=True) as database:
        store_parsed(database, read_estimate_train_time([directory], strict=False))
        imported = time.perf_counter()
        trained = train_bundle(
            database,
            folder / "published.kcast",
            statistic="middle_five",
            seed=seed,
            jobs=0,  # one process per core
            on_progress=progress,
        )
    return trained, imported - start, time.perf_counter() - imported


def progress(done: int, total: int, operator: str) -> None:
    print(f"\r{done} of {total} {operator:30}", end="" if done < total else "\n", file=sys.stderr, flush=True)


def plain_error(selected: Selected, role: str, seed: int) -> float:
    """Mean held-out error of a RandomForest on the raw vectors of a role's rows."""
    times_us = selected.table.role_times_us[role]
    rows = np.isfinite(times_us)
    workloads, times_us = selected.table.workloads[rows], times_us[rows]
    predicted_us = np.empty(len(times_us))
    for fitted, held_out in KFold(5, shuffle=True, random_state=seed).split(workloads):
        forest = RandomForestRegressor(n_estimators=PLAIN_TREES, random_state=seed, n_jobs=-1)
        forest.fit(workloads[fitted], times_us[fitted])
        predicted_us[held_out] = forest.predict(workloads[held_out])
    return float(np.mean(relative_errors(predicted_us, times_us)))


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def row_of(operator: OperatorFigures, role: RoleFigures, plain: float) -> list[str]:
    entry = operator.entry
    return [
        role.name,
        entry.operator,
        entry.direction.value,
        f"{role.rows:,}",
        percent(role.error),
        percent(role.reference_error),
        percent(plain),
        percent(entry.extrapolation_error),
        f"{entry.algorithm}, {entry.form}",
        f"{entry.size_bytes / 1000:,.0f}",
    ]


HEADS = (
    "role", "operator", "direction", "rows", "error %", "authors' %", "plain forest %", "extrapolated %", "chosen",
    "kB",
)  # fmt: skip


def summary(found: TrainingFigures, plain: Sequence[float]) -> Iterator[str]:
    """Means over the roles that the authors published an error of, without collectives; extrapolation."""
    counted = [
        (role.error, role.reference_error, error)
        for (operator, role), error in zip(found.by_role, plain, strict=True)
        if not operator.is_collective and role.reference_error is not None
    ]
    ours, theirs, forests = (percent(float(np.mean(errors))) for errors in zip(*counted, strict=True))
    yield f"- mean error of {len(counted)}: {ours} %, authors' {theirs} %, plain forest {forests} %"
    worst = max(own / published for own, published, _ in counted)
    yield f"- largest error as a multiple of the authors' for the same role and direction: {worst:.2f}"
    ratios = [
        o.entry.extrapolation_error / o.entry.validation_error
        for o in found.operators
        if o.entry.extrapolation_error is not None
    ]
    yield f"- error beyond the fitted range / within it, mean of {len(ratios)}: {np.mean(ratios):.2f}"
    if found.mean_coverage is not None:
        yield f"- held-out rows within their 90 % interval: {percent(found.mean_coverage)} %"


def layout_rows(found: TrainingFigures) -> list[list[str]]:
    return [
        [
            role_name(operator.entry.operator, layout.role),
            f"{layout.nodes} × {layout.gpus_per_node}",
            f"{layout.rows:,}",
            percent(layout.median_error),
            percent(layout.error),
            percent(layout.reference_error),
        ]
        for operator in found.operators
        for layout in operator.layouts
    ]


LAYOUT_HEADS = ("collective", "nodes × GPUs", "rows", "median error %", "mean error %", "authors' mean %")


def report(bench: Bench, directory: Path, seed: int) -> list[str]:
    """Lines of Markdown."""
    with tempfile.TemporaryDirectory() as name:
        trained, imported_s, trained_s = train(directory, Path(name), seed)
        loaded = bench.part("load", repeat=LOADS, bundle=trained.path)
        size_bytes = trained.path.stat().st_size
    found = figures(trained, Reference.read(directory))
    plain = [plain_error(operator.selected, role.role, seed) for operator, role in found.by_role]
    cells = [row_of(*row, error) for row, error in zip(found.by_role, plain, strict=True)]
    return [
        f"`make bench-train`, seed {seed}, on the authors' {directory.name} measurements:",
        "",
        *table(HEADS, cells),
        "",
        *summary(found, plain),
        f"- bundle {size_bytes / 1e6:.2f} MB; all of it loaded in {loaded['seconds']:.2f} s, "
        f"{loaded['bytes'] / 1e6:.0f} MB of memory",
        f"- imported in {imported_s:.0f} s, trained in {trained_s:.0f} s",
        "",
        *table(LAYOUT_HEADS, layout_rows(found)),
    ]


@script(
    page="accuracy.md",
    options={"directory": {"type": Path}, "--seed": {"type": int, "default": DEFAULT_SEED}},
    load=load,
)
def main(bench: Bench) -> None:
    given = bench.given
    if not given.directory.is_dir():
        print(
            f"{given.directory}: no such folder, nothing measured; expected a site's estimate-train-time data"
        )
        return
    bench.publish("\n".join(report(bench, given.directory, given.seed)))
