"""Building blocks of an exported graph: nodes and constants, collected under names of their own."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from kernelcast.train.baseline import Powers

INPUT = "workload"


class Graph:
    """Collects nodes and constants. Every node has one output, whose name is answered; all are [rows, …].

    `columns` are the features one by one, [rows, 1] each.
    """

    def __init__(self, features: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._products: dict[Powers, str] = {}
        self.columns = [
            self.add("Gather", INPUT, self.constant([column], np.int64), axis=1) for column in range(features)
        ]

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """A node; answers the name of its output."""
        output = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        """A constant; answers its name."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def product(self, powers: Powers) -> str:
        """Product of the features, each as often as its exponent says, from left to right; made once."""
        if powers not in self._products:
            factors = [name for name, power in zip(self.columns, powers, strict=True) for _ in range(power)]
            self._products[powers] = reduce(lambda product, factor: self.add("Mul", product, factor), factors)
        return self._products[powers]

    def size(self) -> str:
        """Product of all features, [rows, 1]."""
        return self.product((1,) * len(self.columns))

    def remainder(self, value: str, modulus: int) -> str:
        """What a value leaves over, divided by a power of two: exact in float32, as in features.py."""
        divisor = self.constant([[modulus]])
        whole = self.add("Floor", self.add("Div", value, divisor))
        return self.add("Sub", value, self.add("Mul", whole, divisor))

    def weighted_sum(self, terms: Sequence[tuple[float, str]]) -> str:
        """Sum of weight · value."""
        return reduce(
            lambda total, term: self.add("Add", total, term),
            [self.add("Mul", name, self.constant([[weight]])) for weight, name in terms],
        )

    def as_number(self, condition: str) -> str:
        """1 where a condition holds, else 0."""
        return self.add("Cast", condition, to=onnx.TensorProto.FLOAT)
