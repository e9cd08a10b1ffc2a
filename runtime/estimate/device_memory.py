"""Memory that each stage of a training step needs, a device's memory, and how far measured lies from predicted."""

import math
import tomllib
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any

from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.dataclass import dataclass, field
from kernelcast.runtime.estimate.defaults import has_gpus, usual_gpu_memory_bytes, usual_reserved_bytes
from kernelcast.runtime.memory.stages import StageMemory, architecture_of, on_cpu, stage_memory
from kernelcast.runtime.memory.working import communicator_bytes
from kernelcast.runtime.request.fields import FIT_PROBABILITY
from kernelcast.runtime.request.layout import Cluster, Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.shipped import MEMORY_ERRORS
from kernelcast.runtime.step.layouts import Layouts

_Z_95 = 1.6448536269514722
"""Standard deviations from the middle of a normal distribution to its 95 % quantile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySpread:
    """log(measured / predicted) of measured steps, 5, 50 and 95 % quantiles; on each side of the middle half a normal
    distribution. `kernelcast validate memory` makes the table, memory_errors.toml.
    """

    low: float
    middle: float
    high: float

    def interval_bytes(self, predicted_bytes: float) -> tuple[int, int]:
        """What is allocated in nine of ten steps."""
        return round(predicted_bytes * math.exp(self.low)), round(predicted_bytes * math.exp(self.high))

    def fit_probability(self, predicted_bytes: float, usable_bytes: float) -> float:
        """Probability that a step needs at most `usable_bytes`."""
        if usable_bytes <= 0:
            return 0.0
        distance = math.log(usable_bytes / predicted_bytes) - self.middle
        side = self.high - self.middle if distance > 0 else self.middle - self.low
        return 0.5 * (1 + math.erf(distance / side * _Z_95 / math.sqrt(2)))

    def largest_share(self, probability: float) -> float:
        """What a prediction may be of the memory that it fits into with this probability.

        >>> round(MemorySpread(low=-0.1, middle=0.0, high=0.1).largest_share(0.95), 3)
        0.905
        """
        from statistics import NormalDist  # takes longer to import than all else here

        z = NormalDist().inv_cdf(probability) / _Z_95
        side = self.high - self.middle if z > 0 else self.middle - self.low
        return math.exp(-(self.middle + z * side))


@cache
def memory_spread(has_experts: bool) -> MemorySpread:
    """Of dense models, or of models with experts."""
    table = tomllib.loads(MEMORY_ERRORS.read_text())["experts" if has_experts else "dense"]
    return MemorySpread(low=table["low"], middle=table["middle"], high=table["high"])


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory needed per device of each stage, and a device's, None if unknown, from `source` ("asked", "bundle",
    "unknown"). Training cannot use `reserved_bytes` and what NCCL's `communicators` take, by group. `spread` is how far
    measured memory lies from predicted.
    """

    stages: tuple[StageMemory, ...]
    gpu_memory_bytes: int | None
    source: str
    reserved_bytes: int = 0
    communicators: Mapping[str, int] = field(default_factory=dict)
    spread: MemorySpread | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def interval_bytes(self) -> tuple[int, int] | None:
        """What is allocated on the fullest device in nine of ten steps; None on CPUs."""
        return None if self.spread is None else self.spread.interval_bytes(self.largest_bytes)

    @property
    def fit_probability(self) -> float | None:
        """Probability that every stage fits; None on CPUs, or if the size is unknown."""
        if self.spread is None or self.usable_bytes is None:
            return None
        return self.spread.fit_probability(self.largest_bytes, self.usable_bytes)

    @property
    def fit_verdict(self) -> str | None:
        """`fits`, `may fit` or `does not fit`, by the probability that a search wants; None without a size."""
        if self.fits is None:
            return None
        probability, wanted = self.fit_probability, FIT_PROBABILITY.default
        if probability is not None and 1 - wanted < probability < wanted:
            return "may fit"
        return "fits" if self.fits else "does not fit"

    @cached_property
    def largest_bytes(self) -> int:
        """Memory needed on the fullest device."""
        return max(stage.total_bytes for stage in self.stages)

    @cached_property
    def usable_bytes(self) -> int | None:
        """Memory of a device that torch's allocator can use; None if its size is unknown."""
        if self.gpu_memory_bytes is None:
            return None
        return max(0, self.gpu_memory_bytes - sum(self.taken_bytes.values()))

    @property
    def taken_bytes(self) -> Mapping[str, int]:
        """What torch's allocator cannot use, by name, where it is any."""
        found = {"reserved": self.reserved_bytes, "NCCL": sum(self.communicators.values())}
        return {name: size for name, size in found.items() if size}

    @property
    def margin_bytes(self) -> int | None:
        """Memory left on the fullest device, negative if it does not fit; None if the size is unknown."""
        return None if self.usable_bytes is None else self.usable_bytes - self.largest_bytes

    @property
    def fits(self) -> bool | None:
        """Whether every stage is predicted to fit into its device; None if the size is unknown."""
        return None if self.usable_bytes is None else self.largest_bytes <= self.usable_bytes

    def fits_stage(self, stage: StageMemory) -> bool | None:
        return None if self.usable_bytes is None else stage.total_bytes <= self.usable_bytes


def device_memory(
    bundle: Bundle,
    model: ModelConfig,
    parallelism: Parallelism,
    gpu_memory_bytes: int | None,
    reserved_bytes: int | None,
    cluster: Cluster | None = None,
) -> Memory:
    """Memory in the precision of the bundle's operators, on its device unless size and reserved part are given."""
    known = usual_gpu_memory_bytes(bundle)
    source = "asked" if gpu_memory_bytes is not None else "unknown" if known is None else "bundle"
    compute = bundle.manifest.compute
    is_cpu = on_cpu(compute)
    options: dict[str, Any] = {
        "dtype": bundle.manifest.dtype,
        "is_cpu": is_cpu,
        "architecture": architecture_of(compute),
        "cluster": cluster,
    }
    buffers = communicator_bytes(Layouts.of(parallelism)) if has_gpus(bundle) else {}
    return Memory(
        stages=stage_memory(model, parallelism, **options),
        options=options,
        gpu_memory_bytes=known if gpu_memory_bytes is None else gpu_memory_bytes,
        source=source,
        reserved_bytes=usual_reserved_bytes(bundle) if reserved_bytes is None else reserved_bytes,
        communicators={name: int(size[0]) for name, size in buffers.items() if size[0]},
        spread=None if is_cpu else memory_spread(model.experts > 0),
    )
