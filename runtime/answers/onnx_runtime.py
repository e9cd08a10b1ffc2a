"""ONNX Runtime, imported when it is first needed and kept from reporting to its maker; and graphs run by numpy instead.

ONNX Runtime takes a tenth of a second to import, and a session 3 to 30 ms to open. numpy runs a checked graph bit for
bit as ONNX Runtime does from version 1.21 on, on x86-64 with fused multiply-add: sums, products and comparisons are
exact in both. Exponential, logarithm and products of matrices take the steps that ONNX Runtime's libraries take: MLAS's
`MlasComputeExpF32Kernel` and sgemm, and Eigen's `plog_impl_float` in registers of 128 bits, which fuses nothing.
"""

import os
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from numpy._core._multiarray_umath import __cpu_features__  # type: ignore[import-not-found]
from numpy.typing import NDArray

from kernelcast.runtime.bundle.graph import Graph


def onnx_runtime() -> Any:
    """The module `onnxruntime`; importing it takes a tenth of a second.

    Since version 1.29 it sends telemetry from Linux too, and leaves an identifier in the user's home
    (microsoft/onnxruntime pull request 27379). The variable turns that off; it is read at
    import, so it is set before, unless the user has set it.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    from kernelcast.runtime.terminations import interrupts_held

    with (
        interrupts_held()
    ):  # its compiled module drops exceptions that are raised while it initialises itself
        import onnxruntime

    return onnxruntime


def open_session(model: bytes) -> Any:
    """A session of a model, on one thread; any error is ONNX Runtime's."""
    onnxruntime = onnx_runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


_BLOCK_COLUMNS = 256  # of a product, by sgemm
IS_FUSED: bool = __cpu_features__.get("FMA3", False)
"""Whether `run_graph` answers bit for bit as ONNX Runtime does: not by libraries for other processors."""
_EXACT = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Max": np.maximum,
    "Min": np.minimum,
    "Equal": np.equal,
    "Greater": np.greater,
    "Floor": np.floor,
    "Ceil": np.ceil,
}
_Floats = NDArray[np.float32]


def run_graph(graph: Graph, rows: _Floats) -> dict[bytes, _Floats]:
    """Every value of a graph for some rows, a multiple of 4 of them."""
    values: dict[bytes, Any] = {graph.input: rows, **graph.constants}
    with np.errstate(all="ignore"):  # what is not finite is refused later
        for kind, names, output, constant in graph.nodes:
            inputs = [values[name] for name in names]
            if kind in _EXACT:
                values[output] = reduce(_EXACT[kind], inputs) if len(inputs) > 1 else _EXACT[kind](*inputs)
            elif kind in _STEPS:
                values[output] = _STEPS[kind](*inputs)
            elif kind == "Concat":
                values[output] = np.concatenate(inputs, axis=1)
            elif kind == "Gather":
                values[output] = inputs[0][:, constant]
            elif kind == "TreeEnsembleRegressor":
                values[output] = constant(inputs[0])
            else:  # Cast, Identity
                values[output] = inputs[0].astype(np.float32, copy=False)
    return values


def _fused(left: Any, right: Any, added: Any) -> Any:
    """A product plus a number, rounded once to float32. In float64 the product is exact, and the sum nearly always."""
    return (left.astype(np.float64) * right + added).astype(np.float32)


_EXPONENTS = np.float32(-103.9720840454), np.float32(88.7762626647950)
_ROUNDING = np.float32(1.5 * 2**23)  # a number that it is added to and taken from again is whole
_PER_LN2, _LN2_HIGH, _LN2_LOW = map(np.float32, (1.4426950408889634, -0.693145752, -1.42860677e-6))
_EXP = [
    np.float32(float.fromhex(one))
    for one in ("1.694p-10", "1.125edcp-7", "1.555b5ap-5", "1.55545p-3", "1.fffff6p-2")
]


def _exp(exponent: _Floats) -> Any:
    """2ⁿ times a polynomial of what is left of the exponent without n · ln 2."""
    within = np.clip(exponent, *_EXPONENTS)
    whole = _fused(within, _PER_LN2, _ROUNDING) - _ROUNDING
    left = _fused(whole, _LN2_LOW, _fused(whole, _LN2_HIGH, within))
    found = np.full_like(left, _EXP[0])
    for factor in (*_EXP[1:], np.float32(1), np.float32(1)):
        found = _fused(found, left, factor)
    return np.ldexp(found, np.nan_to_num(whole).astype(np.int32))


_SQRT_HALF, _LN2 = np.float32(0.5**0.5), np.float32(0.6931471805599453)
_LOG_ABOVE: list[Any] = list(map(np.float32, (0.18256296349849254, 1.0000000190281063, 1.0000000190281136)))
_LOG_BELOW: list[Any] = list(
    map(np.float32, (0.049616247954120038, 0.5992324959082052, 1.4999999999999927, 1.0))
)


def _log(number: _Floats) -> Any:
    """Of a number 2ⁿ · (1 + x): n · ln 2 plus a ratio of polynomials of x."""
    part, power = np.frexp(number)
    is_low = part < _SQRT_HALF
    left = part - np.float32(1) + np.where(is_low, part, np.float32(0))
    above, below = (
        reduce(lambda sum, one: sum * left + one, factors) for factors in (_LOG_ABOVE, _LOG_BELOW)
    )
    found = (power - is_low).astype(np.float32) * _LN2 + left * above / below
    return np.where((number > 0) & (number < np.inf), found, np.log(number))


def _product(left: _Floats, right: _Floats) -> Any:
    """A product of matrices, added up column by column of `left`, and then blocks of columns."""
    terms: list[Any] = list(zip(left.T[..., np.newaxis], right, strict=True))
    zero: Any = np.zeros((1, 1), np.float32)
    blocks = (terms[n : n + _BLOCK_COLUMNS] for n in range(0, len(terms), _BLOCK_COLUMNS))
    return sum(reduce(lambda sum, term: _fused(term[0], term[1], sum), block, zero) for block in blocks)


_STEPS: dict[str, Callable[..., Any]] = {"Exp": _exp, "Log": _log, "MatMul": _product}
