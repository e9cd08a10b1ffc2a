"""The rows of one regressor, as its plots show them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernelcast.runtime.operators import OPERATORS, OperatorClass
from kernelcast.train.dataset import Array, Table

_ELEMENT_BYTES: Mapping[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
LAYOUT_FEATURES = ("nodes", "gpus_per_node")

Rows = npt.NDArray[np.bool_]
"""A mask, [rows]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """The rows that are drawn: `workloads` [rows, features], times and held-out predictions in µs [rows].

    `half_widths` [rows] are those of the 90 % interval, on the logarithm. `sizes` [rows] counts `size_unit`: FLOPs of
    compute-bound operators, bytes that the others move.
    """

    features: tuple[str, ...]
    workloads: Array
    times_us: Array
    held_out_us: Array
    half_widths: Array
    sizes: Array
    size_unit: str

    @classmethod
    def of(cls, table: Table, held_out_us: Array, half_widths: Array, dtype: str) -> "Points":
        """The rows of a table whose held-out prediction is a finite number above 0."""
        op = OPERATORS[table.operator]
        compute = op.operator_class is OperatorClass.COMPUTE
        sizes = [
            op.flops(table.direction, vector)
            if compute
            else op.moved_bytes(table.direction, vector, _ELEMENT_BYTES.get(dtype, 1))
            for vector in table.workloads.tolist()
        ]
        drawn = np.isfinite(held_out_us) & (held_out_us > 0)
        return cls(
            features=tuple(op.features),
            workloads=table.workloads[drawn],
            times_us=table.times_us[drawn],
            held_out_us=held_out_us[drawn],
            half_widths=half_widths[drawn],
            # A feature of 0 (no layer) moves nothing, which a logarithmic axis cannot show.
            sizes=np.maximum(np.array(sizes)[drawn], 1.0),
            size_unit="FLOP" if compute else "B",
        )

    def __len__(self) -> int:
        return len(self.times_us)

    @property
    def series(self) -> Mapping[str, Rows]:
        """The rows of each layout of a collective ("2 × 4": nodes × GPUs per node); else all rows, named ""."""
        if not set(LAYOUT_FEATURES) <= set(self.features):
            return {"": np.ones(len(self), dtype=np.bool_)}
        columns = [self.features.index(name) for name in LAYOUT_FEATURES]
        layouts = self.workloads[:, columns].astype(np.int64)
        return {
            f"{nodes} × {gpus}": (layouts == (nodes, gpus)).all(axis=1)
            for nodes, gpus in sorted(set(map(tuple, layouts.tolist())))
        }
