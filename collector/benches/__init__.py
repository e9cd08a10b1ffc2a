"""One runnable bench per operator of the table: the torch calls that a training framework makes, and their inputs.

A bench is built from a workload vector, so a measurement cannot carry a vector that it did not run. It is a function
with the operator's name in one of this folder's modules; collectives are in ../communication.
"""

from collections.abc import Mapping
from types import MappingProxyType

from kernelcast.collector.benches import attention, elementwise, experts, gemm, optimizer
from kernelcast.collector.benches.bench import Bench, Builder, Place, Point, UnsupportedError
from kernelcast.runtime.operators import OPERATORS

__all__ = ["BENCHES", "Bench", "Builder", "Place", "Point", "UnsupportedError"]

BENCHES: Mapping[str, Builder] = MappingProxyType(
    {
        name: value
        for module in (elementwise, gemm, attention, experts, optimizer)
        for name, value in vars(module).items()
        if name in OPERATORS and value.__module__ == module.__name__
    }
)
"""Builder of every operator that one device runs alone, by the operator's name."""
