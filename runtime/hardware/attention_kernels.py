"""Kernels of fused attention: those measured, and published ratios of times, with sources (attention_kernels.toml)."""

import math
import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from statistics import fmean
from types import MappingProxyType
from typing import Any

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.shipped import ATTENTION_KERNELS

FUSED = "flash_attention"
"""The operator that kernels differ in; other attention operators ask it for ratios that were not measured."""

_TERA = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredKernels:
    """The kernels that a piece of hardware was measured with, by pass, and how that is known."""

    by_direction: Mapping[Direction, str]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRatio:
    """Time of one kernel over another's: the geometric mean of published ratios from `source`, all within
    `log_half_width` in log(time); where lengths are published, the nearest length's.
    """

    factor: float
    log_half_width: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """Rates of kernels in the same settings: TFLOP/s at some `lengths` in tokens, or in any unit."""

    by_kernel: Mapping[str, tuple[float, ...]]
    lengths: tuple[int, ...]
    head_size: int | None
    source: str


def all_kernels() -> tuple[str, ...]:
    """Kernels that have a name."""
    return tuple(_table()["kernel"])


def kernels_on(architecture: str) -> tuple[str, ...]:
    """Kernels that run on devices of an architecture (`Hopper`)."""
    return tuple(name for name, row in _table()["kernel"].items() if architecture in row["architectures"])


def measured_kernels(hardware: str) -> MeasuredKernels | None:
    """Kernels of the measurements that ship for a row of hardware.toml; None where nothing is known of them."""
    row = _table()["measured"].get(hardware)
    if row is None:
        return None
    stated = {one: row[one.value] for one in (Direction.FORWARD, Direction.BACKWARD) if one.value in row}
    return MeasuredKernels(by_direction=MappingProxyType(stated), source=row["source"])


@lru_cache(maxsize=1024)
def time_ratio(
    architecture: str, direction: Direction, head_size: int, length: int = 0, *, of: str, over: str
) -> TimeRatio | None:
    """Time of kernel `of` over the time of `over` on one architecture, by rates of the nearest published head size and,
    of a `length`, sequence length; None unless both are published.
    """
    if of == over:
        return TimeRatio(factor=1.0, log_half_width=0.0, source="")
    nearest = _nearest(architecture, direction, head_size, of, over)
    if nearest is None:
        return None
    pairs = zip(nearest.by_kernel[of], nearest.by_kernel[over], strict=True)
    logs = [math.log(its_rate / rate) for rate, its_rate in pairs]
    if length and nearest.lengths:
        place = min(range(len(logs)), key=lambda one: abs(math.log(length / nearest.lengths[one])))
        mean, logs = logs[place], logs[max(0, place - 1) : place + 2]
    else:
        mean = fmean(logs)
    return TimeRatio(
        factor=math.exp(mean),
        log_half_width=max(abs(one - mean) for one in logs),
        source=nearest.source,
    )


@lru_cache(maxsize=1024)
def highest_flops_per_s(architecture: str, direction: Direction, head_size: int, kernel: str) -> float | None:
    """What a kernel that is final was published to reach at most; None of others, and where no rate is published."""
    nearest = _nearest(architecture, direction, head_size, kernel)
    if nearest is None or not nearest.lengths or not _table()["kernel"][kernel].get("is_final"):
        return None
    return max(nearest.by_kernel[kernel]) * _TERA


def _nearest(architecture: str, direction: Direction, head_size: int, *kernels: str) -> _Rates | None:
    known = [one for one in _rates(architecture, direction) if set(kernels) <= set(one.by_kernel)]
    return min(known, key=lambda one: abs(math.log(head_size / (one.head_size or head_size))), default=None)


def _rates(architecture: str, direction: Direction) -> list[_Rates]:
    return [
        _Rates(
            by_kernel={name: tuple(row[name]) for name in all_kernels() if name in row},
            lengths=tuple(row.get("sequence_lengths", ())),
            head_size=row.get("head_size"),
            source=row["source"],
        )
        for row in _table()["rates"]
        if row["architecture"] == architecture and direction.value in row["directions"]
    ]


@cache
def _table() -> Mapping[str, Any]:
    return MappingProxyType(tomllib.loads(ATTENTION_KERNELS.read_text(encoding="utf-8")))
