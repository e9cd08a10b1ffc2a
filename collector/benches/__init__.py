"""One runnable bench per operator of the table, a function with its name: the torch calls of a training framework."""

from collections.abc import Mapping
from types import MappingProxyType

from kernelcast.collector.benches import attention, elementwise, optimizer, products
from kernelcast.collector.benches.bench import Bench, Builder, Place, Point, UnsupportedError
from kernelcast.runtime.operators import OPERATORS

__all__ = ["BENCHES", "Bench", "Builder", "Place", "Point", "UnsupportedError"]

BENCHES: Mapping[str, Builder] = MappingProxyType(
    {
        name: value
        for module in (elementwise, products, attention, optimizer)
        for name, value in vars(module).items()
        if name in OPERATORS and value.__module__ == module.__name__
    }
)
"""Builder of every operator that one device runs alone, by the operator's name."""
