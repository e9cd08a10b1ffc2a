"""The rate of a device that its utilisation refers to."""

from typing import Annotated

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.record import Record, above


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak(Record):
    """Highest rate of matrix products of a device in an element type; `source` says who published or measured it."""

    device: str
    dtype: str
    flops_per_s: Annotated[float, above(0)]
    source: str

    def __str__(self) -> str:
        return f"{self.flops_per_s / 1e9:.4g} GFLOP/s in {self.dtype} ({self.source})"
