"""Descriptions of a layer that others ask for too, such as those of further predictions: made once for its sizes."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from kernelcast.runtime.step.layers.sizes import Layer

L = TypeVar("L", bound=Layer)
T = TypeVar("T")


def once(describe: Callable[[L], T]) -> Callable[[L], T]:
    """The same, kept with the layer's sizes as `cached_property` keeps a value with its object."""

    @wraps(describe)
    def described(layer: L) -> T:
        known: dict[str, Any] = vars(layer.sizes)
        name = f"{type(layer).__name__}.{describe.__name__}"
        if name not in known:
            known[name] = describe(layer)
        found: T = known[name]
        return found

    return described
