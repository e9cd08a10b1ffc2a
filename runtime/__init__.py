"""Evaluates a training step from a bundle of regressors; needs only numpy and onnxruntime.

Hardware that ships is loaded by name, and questions have the fields of `kernelcast predict` and `kernelcast search`:

>>> from kernelcast.runtime import Estimator, SearchResult, predict, search_layouts
>>> h100 = Estimator.load("h100-sxm")
>>> predict(h100, "llama-3-8b", gpus=64, global_batch=512).parallelism.world_size
64
>>> isinstance(search_layouts(h100, "llama-3-8b", gpus=64, global_batch=512), SearchResult)
True

A layout is checked when it is made, a model when it is read, and both together when a step is predicted:

>>> from kernelcast.runtime import Cluster, ModelConfig, Parallelism, load_model
>>> layout = Parallelism(pp=4, tp=4, dp=8, micro_batch=4, micro_batches=16, recompute="full")
>>> layout.world_size, layout.samples_per_update
(128, 512)
>>> estimator = Estimator.load("here.kcast")
>>> estimate = estimator.predict(
...     model=load_model("gpt-20b"), parallelism=layout, cluster=Cluster(gpus_per_node=4)
... )
>>> [stage.layers for stage in estimate.stages]
[11, 11, 11, 11]

An estimate is immutable. It has the step time with its interval, the paper's components, stages, operators, memory
and warnings:

>>> low_s, high_s = estimate.interval_s
>>> low_s <= estimate.step_time_s <= high_s
True
>>> list(estimate.components.to_dict())[:2]
['Encoder_Fwd', 'Encoder_Bwd']
>>> estimate.memory.largest_bytes == max(stage.total_bytes for stage in estimate.memory.stages)
True

Models can also be made of their sizes, and every refusal is one line that names the field:

>>> small = ModelConfig(
...     name="small", hidden_size=512, sequence_length=256, attention_heads=8, layers=4, vocabulary_size=32000
... )
>>> estimator.predict(model=small, parallelism=Parallelism(pp=1, tp=3, dp=1, micro_batch=1, micro_batches=1))
Traceback (most recent call last):
    ...
kernelcast.runtime.errors.UsageError: tp is 3, expected a divisor of attention_heads (8) of model small

`UsageError` is wrong use, `DataError` a file that does not hold what is needed; both are `KernelcastError`:

>>> from kernelcast.runtime import DataError, Estimate, KernelcastError, UsageError, read_bundle
>>> isinstance(estimate, Estimate), issubclass(UsageError, KernelcastError), issubclass(DataError, KernelcastError)
(True, True, True)
>>> read_bundle("here.kcast").manifest.dtype
'float32'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelcast.runtime.bundle.file import read_bundle
    from kernelcast.runtime.errors import DataError, KernelcastError, UsageError
    from kernelcast.runtime.estimate.estimate import Estimate
    from kernelcast.runtime.estimate.estimator import Estimator
    from kernelcast.runtime.intent.by_fields import predict, search_layouts
    from kernelcast.runtime.request.layout import Cluster, Parallelism
    from kernelcast.runtime.request.model import ModelConfig
    from kernelcast.runtime.request.models import load_model
    from kernelcast.runtime.search.result import SearchResult

__all__ = [
    "Cluster",
    "DataError",
    "Estimate",
    "Estimator",
    "KernelcastError",
    "ModelConfig",
    "Parallelism",
    "SearchResult",
    "UsageError",
    "load_model",
    "predict",
    "read_bundle",
    "search_layouts",
]

_HOME = {
    "Cluster": "request.layout",
    "DataError": "errors",
    "Estimate": "estimate.estimate",
    "Estimator": "estimate.estimator",
    "KernelcastError": "errors",
    "ModelConfig": "request.model",
    "Parallelism": "request.layout",
    "SearchResult": "search.result",
    "UsageError": "errors",
    "load_model": "request.models",
    "predict": "intent.by_fields",
    "read_bundle": "bundle.file",
    "search_layouts": "intent.by_fields",
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
