"""What a table's rows cover: the range of each feature and of elements, and a collective's layouts."""

from dataclasses import dataclass
from typing import Self

from kernelcast.train.dataset import Layout, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRange:
    """[minimum, maximum] of each feature; of the elements of an elementwise operator (else None); layouts."""

    operator: str
    features: tuple[str, ...]
    training_range: tuple[tuple[float, float], ...]
    elements_range: tuple[float, float] | None
    layouts: tuple[Layout, ...]

    @classmethod
    def of(cls, table: Table) -> Self:
        """That of a table's rows."""
        lows, highs = table.workloads.min(axis=0).tolist(), table.workloads.max(axis=0).tolist()
        elements = None
        if table.law.is_elementwise:
            moved = [table.law.elements(workload) for workload in table.workloads.tolist()]
            elements = (min(moved), max(moved))
        return cls(
            operator=table.operator,
            features=tuple(table.law.features),
            training_range=tuple(zip(lows, highs, strict=True)),
            elements_range=elements,
            layouts=table.layouts,
        )
