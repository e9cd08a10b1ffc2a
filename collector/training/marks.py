"""Marks of operators, layers and passes in a trace; without a profiler they cost next to nothing."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch.profiler import record_function

from kernelcast.runtime.operators import OPERATORS, Operator

OPERATOR = "kernelcast.operator."
"""Prefix of an operator of runtime/operators with its role (`gemm/qkv`), or of other work."""
LAYER = "kernelcast.layer"
FORWARD, LOSS, BACKWARD = "kernelcast.forward", "kernelcast.loss", "kernelcast.backward"
"""Passes of one micro-batch through one chunk of the model."""
STEP = "kernelcast.step"

_tracing = False


@contextmanager
def marks_shown() -> Iterator[None]:
    """Make marks inside this block only: each costs some microseconds, with or without a profiler."""
    global _tracing
    _tracing = True
    try:
        yield
    finally:
        _tracing = False


def marked(name: str) -> AbstractContextManager[object]:
    """A pass, a layer or a step."""
    return record_function(name) if _tracing else nullcontext()


def operator_mark(operator: str, role: str = "") -> AbstractContextManager[object]:
    """One call of an operator. Its backward pass needs no mark: autograd links it to the call."""
    return record_function(OPERATOR + called(operator, role)) if _tracing else nullcontext()


def called(operator: str, role: str) -> str:
    """Name of an operator in a role in traced steps: `gemm/qkv`, or `gelu`."""
    return f"{operator}/{role}" if role else operator


def row_of(name: str) -> Operator | None:
    """The table's operator for a name from `called`; None where the table lacks it."""
    return OPERATORS.get(name.partition("/")[0])
