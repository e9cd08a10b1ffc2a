"""How well the matrix products of inference frameworks' tables carry over to shapes and passes that they lack.

Prints, for each GEMM table of datasets/aiconfigurator, the mean error of its
regressor on held-out rows, and on rows whose pair of [n, k] was held out whole; then how far both gradients of linears,
answered by the A100's forward table, are off from those that Perlmutter measured. Minutes, no network, no GPU.
"""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.model_selection import GroupKFold

from kernelcast.benchmarks.harness import ROOT, Bench, script
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database
from kernelcast.store.importers import read_aiconfigurator, read_estimate_train_time, store_parsed
from kernelcast.train.dataset import Table, tables
from kernelcast.train.fit import DEFAULT_SEED
from kernelcast.train.regressor import Regressor, fit
from kernelcast.train.scope import Scope
from kernelcast.train.screening import screen
from kernelcast.train.selection import relative_errors, select

DATASETS = ROOT / "datasets"
TABLES = {
    "a100-sxm": "a100_sxm/gemm/sglang/0.5.10",
    "h100-sxm": "h100_sxm/gemm/sglang/0.5.14",
    "h200-sxm": "h200_sxm/gemm/vllm/0.22.0",
    "b200-sxm": "b200_sxm/gemm/sglang/0.5.14",
}
_SPLITS = 5


def gemm(parsed: object, dtype: str, direction: Direction) -> Table:
    """The matrix products of some files in one direction."""
    with (
        tempfile.TemporaryDirectory(prefix="kernelcast-") as folder,
        Database.open(Path(folder) / "source.db", create=True) as database,
    ):
        store_parsed(database, parsed)  # type: ignore[arg-type]
        scope = Scope.choose(database, dtype=dtype, hardware="", software="", fabric="")
    own = tuple(one for one in scope.samples if one.operator == "gemm")
    rows = screen(own, statistic="middle_five", where="datasets", compute=scope.compute[0], fabric=None).rows
    return next(one for one in tables(rows, statistic="middle_five") if one.direction is direction)


def _error_of_pairs(table: Table, chosen: Regressor, pairs: np.ndarray) -> float:
    """Mean error of rows by fits without any row of their pair."""
    errors = np.empty(len(table))
    for rest, held_out in GroupKFold(_SPLITS).split(table.workloads, groups=pairs):
        one = fit(chosen.candidate, table.part(rest), DEFAULT_SEED)
        errors[held_out] = relative_errors(
            one.predict_us(table.workloads[held_out]), table.times_us[held_out]
        )
    return float(errors.mean())


@script()
def main(bench: Bench) -> None:
    print("table      rows    pairs [n, k]  held-out rows  held-out pairs  ratio")
    fitted: dict[str, Regressor] = {}
    for name, folder in TABLES.items():
        parsed = read_aiconfigurator([DATASETS / "aiconfigurator" / folder / "gemm_perf.parquet"])
        table = gemm(parsed, "bfloat16", Direction.FORWARD)
        chosen = select(table, DEFAULT_SEED)
        fitted[name] = chosen.regressor
        pairs = np.unique(table.workloads[:, 1:], axis=0, return_inverse=True)[1].ravel()
        by_pair = _error_of_pairs(table, chosen.regressor, pairs)
        print(
            f"{name:10} {len(table):6,}  {pairs.max() + 1:12,}  {chosen.validation_error:13.2%}  {by_pair:14.2%}  "
            f"{by_pair / chosen.validation_error:5.2f}",
            flush=True,
        )
    measured = gemm(
        read_estimate_train_time([DATASETS / "estimate-train-time" / "Perlmutter"]),
        "float16",
        Direction.BACKWARD,
    )
    m, k, n = measured.workloads.T
    inside = np.ones(len(measured), dtype=bool)
    predicted_us = sum(
        fitted["a100-sxm"].predict_us(np.column_stack(product))[inside] for product in ((m, n, k), (k, m, n))
    )
    off = relative_errors(np.asarray(predicted_us), measured.times_us)
    ratio = float(np.median(predicted_us / measured.times_us))
    print(f"\nbackward of {len(measured):,} linears of Perlmutter by the forward table of the same device:")
    print(
        f"median {np.median(off):.1%}, mean {off.mean():.1%}, predicted / measured {ratio:.3f} in the median"
    )
