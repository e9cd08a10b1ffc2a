"""Validation errors of the regressors of the method's authors: `GPU.csv` in the folder of their data files."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.store.importers.estimate_train_time import (
    COLLECTIVES,
    DTYPES,
    FUNCTIONS,
    Function,
    data_files,
)
from kernelcast.store.importers.tables import Cells, CsvTable, Malformed, Skipped, read_text_file

_ALGORITHMS = {"rforest": "random_forest", "xgboost": "xgboost"}
_DIRECTIONS = {"fwd": Direction.FORWARD, "bwd": Direction.BACKWARD, "dur": Direction.ONCE}
_LONGEST_SETTINGS = 2_000
_WHAT = "a list of the authors' regressors"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedError:
    """The error of a regressor. `validation_error` is a fraction, on a split of 20 %.

    `nodes` and `gpus_per_node` are the layout of a collective, both 0 for a regressor of all layouts; None for
    operators.
    """

    operator: str
    role: str
    direction: Direction
    dtype: str
    nodes: int | None
    gpus_per_node: int | None
    algorithm: str
    hyperparameters: Mapping[str, Any]
    validation_error: float


def read_published_errors(directory: Path) -> tuple[PublishedError, ...]:
    """Errors in a site's folder, in the order of the table of operators, then by layout.

    Functions without an operator are left out.

    Raises:
        DataError: no such folder, a file is not such a list, or a line is malformed.
    """
    device = data_files(directory)[0].gpu
    paths = [path for part in ("operator", "nccl") if (path := directory / part / f"{device}.csv").is_file()]
    if not paths:
        raise DataError(f"{directory}: holds no operator/{device}.csv and no nccl/{device}.csv")
    order = [(row.name, role) for row in OPERATORS.values() for role in row.roles]
    return tuple(
        sorted(
            (error for path in paths for error in _errors(path)),
            key=lambda e: (
                order.index((e.operator, e.role)),
                e.direction.value,
                e.nodes or 0,
                e.gpus_per_node or 0,
            ),
        )
    )


def _errors(path: Path) -> Iterator[PublishedError]:
    table = CsvTable.of(read_text_file(path))
    table.require(("Function", "Precision", "Best_model", "Best_config", "Best_error%"), _WHAT)
    is_collective = path.parent.name == "nccl"
    table.require(("Nodes", "GPUsPerNode") if is_collective else ("Propagation",), _WHAT)
    functions = COLLECTIVES if is_collective else FUNCTIONS
    for row in table.rows(Skipped(strict=True)):
        function = functions.get(row.cells.get("Function", ""))
        if function is None:
            continue
        try:
            yield _error(row, function, is_collective=is_collective)
        except (Malformed, KeyError, ValueError, SyntaxError) as error:
            raise DataError(f"{path}:{row.line}: is not {_WHAT} ({error})") from error


def _error(row: Cells, function: Function, *, is_collective: bool) -> PublishedError:
    settings = row.text("Best_config")
    if len(settings) > _LONGEST_SETTINGS:
        raise Malformed(f"Best_config: more than {_LONGEST_SETTINGS} characters")
    hyperparameters = ast.literal_eval(settings)  # literals only: no code of the file runs
    if not isinstance(hyperparameters, dict):
        raise Malformed(f"Best_config: found {settings!r:.40}, expected a dictionary")
    return PublishedError(
        operator=function.operator,
        role=function.role,
        direction=Direction.ONCE if is_collective else _DIRECTIONS[row.text("Propagation")],
        dtype=DTYPES[row.text("Precision")],
        nodes=int(row.text("Nodes")) if is_collective else None,
        gpus_per_node=int(row.text("GPUsPerNode")) if is_collective else None,
        algorithm=_ALGORITHMS[row.text("Best_model")],
        hyperparameters=MappingProxyType(hyperparameters),
        validation_error=row.positive("Best_error%"),
    )
