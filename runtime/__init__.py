"""Evaluates a training step from a bundle of regressors; needs only numpy and onnxruntime.

>>> from kernelcast.runtime import Parallelism
>>> Parallelism(pp=4, mp=4, dp=8, micro_batch=4, micro_batches=16).world_size
128
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelcast.runtime.bundle import read_bundle
    from kernelcast.runtime.errors import DataError, KernelcastError, UsageError
    from kernelcast.runtime.estimate import Estimate
    from kernelcast.runtime.estimator import Estimator
    from kernelcast.runtime.model import ModelConfig
    from kernelcast.runtime.models import load_model
    from kernelcast.runtime.parallelism import Cluster, Parallelism

__all__ = [
    "Cluster",
    "DataError",
    "Estimate",
    "Estimator",
    "KernelcastError",
    "ModelConfig",
    "Parallelism",
    "UsageError",
    "load_model",
    "read_bundle",
]

_HOME = {
    "Cluster": "parallelism",
    "DataError": "errors",
    "Estimate": "estimate",
    "Estimator": "estimator",
    "KernelcastError": "errors",
    "ModelConfig": "model",
    "Parallelism": "parallelism",
    "UsageError": "errors",
    "load_model": "models",
    "read_bundle": "bundle",
}


def __getattr__(name: str) -> Any:
    # Loaded when first used: whoever needs only the operator table does not pay for numpy.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
