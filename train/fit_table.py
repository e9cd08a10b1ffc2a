"""The work for one operator and direction: choose, fit, calibrate, export, compare. Needs no database.

The same table and recipe give the same file, so that it need not be fitted again: their digests stand in the entry.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np

from kernelcast.runtime.bundle.fingerprint import DIGEST_HEX_DIGITS, canonical_json, content_digest
from kernelcast.runtime.bundle.manifest import RegressorEntry
from kernelcast.runtime.bundle.regressor_entry import Interval
from kernelcast.train.dataset import MeasuredRange, Table
from kernelcast.train.distances import widening_of
from kernelcast.train.export import check_parity, to_onnx
from kernelcast.train.intervals import calibrate
from kernelcast.train.scope import Scope
from kernelcast.train.selection import Selected, select

_LIBRARIES = ("numpy", "scipy", "scikit-learn", "xgboost", "onnx", "onnxmltools", "skl2onnx", "kernelcast")
# Code that decides a regressor's file: training, costs and features of operators, entries and intervals.
_CODE = ("train", "runtime/operators", "runtime/bundle")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitTask:
    """A table to fit, with the operator's own table of fewer processes per node, or of bursts where it is sustained.

    `scope` names hardware, software and dtype; its samples are not needed.
    """

    table: Table
    scope: Scope
    statistic: str
    seed: int
    base: Table | None = None

    @property
    def recipe(self) -> str:
        """Digest of everything except the table that decides the model and its entry.

        Settings, hardware and software of the measurements, code and libraries.
        """
        return content_digest(
            {
                "dtype": self.table.law.dtype_in(self.scope.dtype),
                "statistic": self.statistic,
                "seed": self.seed,
                "base": table_digest(self.base) if self.base is not None else "",
                "load": self.table.load.value,
                "measured_on": [fingerprint.digest for fingerprint in self.scope.measured_on(self.table.law)],
                "code": _code_digest(),
                "libraries": {name: version(name) for name in _LIBRARIES},
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A regressor's ONNX model and entry; `selected` is None if both are from an earlier bundle."""

    selected: Selected | None
    model: bytes
    entry: RegressorEntry


def fit_table(task: FitTask) -> Fitted:
    """Choose and fit a regressor, and export it; DataError where the export answers otherwise."""
    table = task.table
    selected = select(table, task.seed, task.base)
    candidate = selected.regressor.candidate
    calibrated = calibrate(table, selected.held_out_us, task.seed)
    interval, coverage = calibrated.interval, calibrated.coverage
    measured = MeasuredRange.of(table)
    model = to_onnx(selected.regressor, interval, _properties(task, selected, interval, coverage))
    check_parity(model, selected.regressor, interval, table, task.seed)
    entry = RegressorEntry.for_model(
        model,
        operator=table.operator,
        direction=table.direction,
        dtype=table.law.dtype_in(task.scope.dtype),
        training_range=measured.training_range,
        algorithm=candidate.algorithm,
        form=candidate.form,
        hyperparameters=candidate.settings,
        validation_error=selected.validation_error,
        role_errors=selected.role_errors,
        extrapolation_error=selected.extrapolation_error,
        interval=interval,
        interval_coverage=coverage,
        layouts=table.layouts,
        equal_features=_equal_features(table),
        rows=len(table),
        statistic=task.statistic,
        table_digest=table_digest(table),
        recipe_digest=task.recipe,
        processes_per_node=table.processes_per_node,
        elements_range=measured.elements_range,
        widening=widening_of(table, interval, selected.held_out_parts),
        load=table.load,
    )
    return Fitted(selected=selected, model=model, entry=entry)


def table_digest(table: Table) -> str:
    """Digest of a table's workloads, times and roles, as it was measured: equal rows, equal digest."""
    # A time of 0 stands for none.
    roles = {role: np.nan_to_num(times_us).tolist() for role, times_us in table.role_times_us.items()}
    return content_digest([table.workloads.tolist(), table.times_us.tolist(), roles])


def _equal_features(table: Table) -> tuple[str, ...]:
    """The two features that may be equal (`Operator.equal_unless_measured`), where they are in all rows."""
    pair = table.law.equal_unless_measured
    if pair is None:
        return ()
    one, other = (table.workloads[:, list(table.law.features).index(name)] for name in pair)
    return pair if (one == other).all() else ()


def _properties(
    task: FitTask, selected: Selected, interval: Interval, coverage: float | None
) -> Mapping[str, str]:
    """The ONNX metadata_props of a model, which identify it outside of its bundle too.

    Texts by name. Numbers are JSON; nothing in them changes from run to run. See docs/bundle.md.
    """
    table, scope = task.table, task.scope
    hardware, software = scope.measured_on(table.law)
    return {
        "operator": table.operator,
        "direction": table.direction.value,
        "features": " ".join(table.law.features),
        "feature_units": canonical_json(dict(table.law.features)),
        "unit": "microseconds",
        "dtype": table.law.dtype_in(scope.dtype),
        "statistic": task.statistic,
        "hardware": hardware.description,
        "software": software.description,
        "processes_per_node": str(table.processes_per_node),
        **({"load": table.load.value} if table.load.value else {}),
        "rows": str(len(table)),
        "training_range": canonical_json(MeasuredRange.of(table).training_range),
        "validation_error": canonical_json(selected.validation_error),
        "interval": canonical_json(interval.to_dict()),
        "interval_coverage": canonical_json(coverage),
        "kernelcast_version": version("kernelcast"),
    }


@cache
def _code_digest() -> str:
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    files = (
        path for folder in _CODE for path in (root / folder).iterdir() if path.suffix in (".py", ".toml")
    )
    for path in sorted(files):
        digest.update(
            path.relative_to(root).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest()
        )
    return digest.hexdigest()[:DIGEST_HEX_DIGITS]
