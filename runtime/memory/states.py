"""Model states: weights, gradients and optimizer states of a stage under ZeRO (arXiv 1910.02054, section 3.1)."""

import numpy as np

from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.errors import UsageError, shown
from kernelcast.runtime.memory.in_flight import Floats
from kernelcast.runtime.request.fields import OptimizerKind, ReduceDtype, StateType
from kernelcast.runtime.step.op import Number
from kernelcast.runtime.step.update import gradient_bytes, state_bytes


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes per parameter of the three states, and of an element of an activation."""

    weight: int
    gradient: int
    optimizer: int

    @property
    def element(self) -> int:
        """Bytes of one element of an activation."""
        return self.weight


# Mixed precision keeps fp32 copies of the weights and Adam's two moments: 4 + 4 + 4 (its section 3.1).
_MIXED = Precision(weight=2, gradient=2, optimizer=12)
PRECISIONS = {
    "float16": _MIXED,
    "bfloat16": _MIXED,
    "float32": Precision(weight=4, gradient=4, optimizer=8),
    "float64": Precision(weight=8, gradient=8, optimizer=16),
    # Products in 8 bit cast their inputs; kept tensors have 16.
    "float8_e4m3fn": _MIXED,
    "float8_e5m2": _MIXED,
}


def precision_of(dtype: str, reduce_dtype: ReduceDtype = "same") -> Precision:
    """Bytes of a training precision by name, with gradients kept in `reduce_dtype`. UsageError for an unknown name."""
    if dtype not in PRECISIONS:
        raise UsageError(f"dtype is {shown(dtype)}, expected {', '.join(PRECISIONS)}")
    found = PRECISIONS[dtype]
    return replace(found, gradient=gradient_bytes(reduce_dtype, found.element))


@dataclass(frozen=True, slots=True)
class States:
    """Bytes of the model states, float64 [rows]."""

    weights: Floats
    gradients: Floats
    optimizer: Floats

    def __add__(self, other: "States") -> "States":
        return States(
            self.weights + other.weights, self.gradients + other.gradients, self.optimizer + other.optimizer
        )


def with_optimizer(precision: Precision, kind: OptimizerKind, states: StateType) -> Precision:
    """The precision with another optimizer's moments instead of Adam's in fp32 (fp64 for float64); same masters."""
    moment = 8 if precision.weight == 8 else 4
    masters = precision.optimizer - 2 * moment
    return replace(precision, optimizer=masters + state_bytes(kind, states, moment))


def as_masters(precision: Precision) -> Precision:
    """The same where the shards of the weights are the fp32 masters, and so are gradients (FSDP)."""
    masters = max(precision.weight, 4)
    return Precision(
        weight=masters,
        gradient=masters,
        optimizer=precision.optimizer - (masters if precision.weight < 4 else 0),
    )


def frozen_states(parameters: Number, shards: Floats, zero: Floats, precision: Precision) -> States:
    """Weights that are not trained: no gradients, no optimizer states."""
    weights = precision.weight * np.where(zero >= 3, np.ceil(parameters / shards), parameters)
    return States(weights=weights, gradients=np.zeros(1), optimizer=np.zeros(1))


def model_states(
    parameters: Number, shards: Floats, zero: Floats, precision: Precision, sharded: Precision | None = None
) -> States:
    """Model states of devices that hold `parameters` each, all [rows]. Divided by `shards`, in whole parameters, are
    optimizer states (ZeRO-1), gradients (2), weights (3, then of the types of `sharded`, where given).
    """
    shard, whole = np.ceil(parameters / shards), sharded or precision
    is_whole = (zero >= 3) & (shards > 1)
    return States(
        weights=np.where(is_whole, whole.weight * shard, precision.weight * parameters),
        gradients=np.where(is_whole, whole.gradient, precision.gradient)
        * np.where(zero >= 2, shard, parameters),
        optimizer=np.where(is_whole, whole.optimizer, precision.optimizer)
        * np.where(zero >= 1, shard, parameters),
    )
