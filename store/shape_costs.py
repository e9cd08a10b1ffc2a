"""FLOPs and bytes of calls of no operator of the table by the shapes of their inputs: convolutions, norms, elementwise.

The operators of the table have their costs from there, matrix products from m, k and n (schema.sql, `product_rate`).
"""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

from kernelcast.runtime.hardware.devices import ELEMENT_BYTES

Shape = tuple[int, ...]


class Call(NamedTuple):
    """What was recorded of a kind of call: its name, the shapes of its inputs and its element type."""

    name: str
    shapes: tuple[Shape, ...]
    dtype: str


class CallCost(NamedTuple):
    """FLOPs, and bytes if every tensor is moved once."""

    flops: float
    moved_bytes: float


_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_CONVOLUTIONS: Mapping[str, tuple[int, int, int, int]] = _DATA["convolutions"]
_WRAPPER, _INNER = "aten::convolution_backward", "aten::_slow_conv2d_backward"
_BEYOND = 2**31
_IMAGE_CHANNELS = 4  # a convolution of at most this many input channels reads images, which need no gradient
_ELEMENTWISE = frozenset(f"aten::{name}" for name in _DATA["elementwise"])


def call_costs(calls: Mapping[int, Sequence[str]]) -> Iterator[tuple[int, str, float, float]]:
    """Number, workload, FLOPs and bytes of calls whose cost is known, from name, shapes, element type and category."""
    read = {number: call for number, one in calls.items() if (call := _read(*one)) is not None}
    known = _convolutions(read.values())
    inner = {call.shapes[:3] for call in read.values() if call.name == _INNER}
    for number, call in read.items():
        if call.name == _WRAPPER and call.shapes[:3] in inner:
            continue
        cost = _elementwise(call) if call.name in _ELEMENTWISE else _convolution(call, known)
        if cost is not None:
            tensors = [shape for shape in call.shapes if len(shape) > 1] or [
                shape for shape in call.shapes if shape
            ]
            workload = ", ".join("×".join(map(str, shape)) for shape in tensors)
            yield number, workload, *cost


def _read(name: str, shapes: str, dtype: str, category: str) -> Call | None:
    # Elementwise calls of a CPU nest, the outer ones do no work.
    is_known = name in _CONVOLUTIONS or (name in _ELEMENTWISE and category != "cpu_op")
    if dtype not in ELEMENT_BYTES or not is_known:
        return None
    listed = tuple(tuple(entry) if isinstance(entry, list) else () for entry in json.loads(shapes))
    is_flat = all(type(size) is int and 0 < size < _BEYOND for entry in listed for size in entry)
    return Call(name, listed, dtype) if is_flat and any(listed) else None


def _elementwise(call: Call) -> CallCost:
    sizes = [prod(shape) for shape in call.shapes if shape]
    return CallCost(float(max(sizes)), float(ELEMENT_BYTES[call.dtype] * (sum(sizes) + max(sizes))))


def _places(call: Call) -> tuple[Shape, Shape, Shape]:
    """Shapes of input, weight and output as far as a convolution has them, else empty."""
    x, w, y, _ = (
        call.shapes[place] if 0 <= place < len(call.shapes) else () for place in _CONVOLUTIONS[call.name]
    )
    return x, w, y


def _convolutions(calls: Iterable[Call]) -> set[tuple[Shape, Shape, Shape]]:
    """Input, weight and output of a run's convolutions. Older profilers record halves of a backward pass: joined."""
    found = {_places(call) for call in calls if call.name in _CONVOLUTIONS}
    halves = {(w, y) for x, w, y in found if w and y and not x}
    joined = {
        (x, w, y) for x, w, none in found if not none for v, y in halves if v == w and (x, (), y) in found
    }
    return {one for one in found | joined if all(len(shape) >= 3 for shape in one)}


def _convolution(call: Call, known: Iterable[tuple[Shape, Shape, Shape]]) -> CallCost | None:
    """The cost; None unless all convolutions of the run that it may be have as many FLOPs."""
    places, products = _places(call), _CONVOLUTIONS[call.name][3]
    costs = []
    for x, w, y in known:
        if all(not own or own == one for own, one in zip(places, (x, w, y), strict=True)):
            count = 1 if x[1] <= _IMAGE_CHANNELS else products
            # 2 · outputs · inputs per output: [channels / groups, height, width] of the weight.
            moved = ELEMENT_BYTES[call.dtype] * (prod(x) + prod(w) + prod(y))
            costs.append(CallCost(2.0 * count * prod(y) * prod(w[1:]), float(count * moved)))
    return min(costs) if len({one.flops for one in costs}) == 1 else None
