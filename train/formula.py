"""Formulas over workload vectors, written once: numpy evaluates them, and export.py traces them into ONNX.

They use numpy's operators and ufuncs only, on columns [rows, 1], so that a value of an ONNX graph (onnx_graph.py) can
take the place of the array of workloads [rows, features].
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import mul
from typing import Any, TypeAlias

import numpy as np

from kernelcast.train.dataset import Array

Column: TypeAlias = Any
"""An array [rows, columns], a number, or a value of an ONNX graph."""

Powers = tuple[int, ...]
"""Exponent per feature of one monomial."""


class Baseline(ABC):
    """The prediction of a regressor before the trees' correction."""

    __slots__ = ()

    @abstractmethod
    def log_us(self, workloads: Array) -> Column:
        """Logarithm of the time in µs, [rows, 1] or a number."""

    def residual_scale(self, workloads: Array) -> Column:
        """Factor on the trees' outputs, [rows, 1] or a number."""
        return 1.0

    def predict_log(self, workloads: Array) -> Array:
        """Logarithm of the time in µs, [rows]."""
        return flat(self.log_us(workloads), len(workloads))


def flat(column: Column, rows: int) -> Array:
    """A column or number as an array [rows]."""
    return np.broadcast_to(np.asarray(column), (rows, 1))[:, 0]


def product(workloads: Column, features: Sequence[int]) -> Column:
    """Product of the features named by number, [rows, 1]; from left to right, as rounding depends on the order."""
    return reduce(mul, [workloads[:, [feature]] for feature in features])


def monomial(workloads: Column, powers: Powers) -> Column:
    """Product of the features, each as often as its exponent states, [rows, 1]."""
    return product(workloads, [feature for feature, power in enumerate(powers) for _ in range(power)])


def weighted_sum(terms: Iterable[tuple[float, Column]]) -> Column:
    """Sum of weight · column."""
    return sum(weight * column for weight, column in terms)
