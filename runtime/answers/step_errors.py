"""Errors of sums of operators in measured steps: log(measured / predicted) by source, `step_errors.json`.

`make step-errors` makes the table from the runs files in validate/. A source is a machine whose steps were measured.
An interval is drawn from all sources, first of the same kind of step (`OTHER_KINDS`) and of devices (`OTHER_DEVICES`),
without the publisher's steps of the model that predictions are compared with (docs/trust.md, A step).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.catalogue.hardware import all_hardware
from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.hardware.devices import device, device_named
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.shipped import STEP_ERRORS

if TYPE_CHECKING:
    from kernelcast.runtime.stack.stack import Stack

OTHER_KINDS = 0.2
"""Weight of a source of another kind of step than the one that is asked."""
OTHER_DEVICES = 0.1
"""Weight of a source on another kind of devices: CUDA's kernels were measured, ROCm's times are CUDA's, scaled."""
LONG_TOKENS = 32_768
"""Sequences from here on are long: attention is most of their steps."""


def step_kind(model: ModelConfig, layout: Parallelism) -> str:
    """The kind of a step whose errors are alike: with long sequences, recurrent layers, experts, adapters, or dense."""
    if model.sequence_length >= LONG_TOKENS:
        return "long"
    if model.recurrent_heads:
        return "recurrent"
    return "experts" if model.experts else "adapters" if layout.lora_rank else "dense"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorsOfSource:
    """Errors of one source's steps of one model in one `timeline`: equally likely quantiles of log(measured /
    predicted), ascending.

    `kind` is the kind of its steps (`step_kind`), `devices` that of its devices (`cuda` or `rocm`). `steps` counts the
    steps they stand for, `unsteady` the steps left out because their repetitions scatter.
    """

    name: str
    publisher: str
    kind: str
    model: str
    timeline: str
    steps: int
    unsteady: int
    log_errors: tuple[float, ...]
    devices: str = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedError:
    """Mean log(measured / predicted) of a source's steps by a stack that was fitted to other devices."""

    stack: str
    name: str
    steps: int
    log_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepErrors:
    """Errors of several sources, and of stacks that were carried to other devices."""

    sources: tuple[ErrorsOfSource, ...] = ()
    carried: tuple[CarriedError, ...] = ()

    def of(self, timeline: str) -> Self:
        return replace(self, sources=tuple(one for one in self.sources if one.timeline == timeline))

    def without(self, publisher: str, model: str = "") -> Self:
        """Errors without the steps of a publisher, or without its steps of one model."""
        left = {one.name for one in self.sources if one.publisher == publisher}
        return replace(
            self,
            sources=tuple(
                one for one in self.sources if one.name not in left or (model and one.model != model)
            ),
            carried=tuple(one for one in self.carried if one.name not in left),
        )

    def quantiles(self, levels: Sequence[float], kind: str = "", devices: str = "") -> NDArray[np.float64]:
        """Quantiles of log(measured / predicted), float64 [levels].

        All steps of a machine and kind weigh as much as another's; with a `kind` of step, other kinds less
        (`OTHER_KINDS`), and with a kind of `devices`, others less (`OTHER_DEVICES`). A kind that no step is of changes
        no weight.
        """
        asked = ("kind", kind, OTHER_KINDS), ("devices", devices, OTHER_DEVICES)
        known = [one for one in asked if one[1] in {getattr(source, one[0]) for source in self.sources}]
        machines: dict[tuple[str, str], int] = {}
        for one in self.sources:
            key = (one.name, one.kind)
            machines[key] = machines.get(key, 0) + len(one.log_errors)
        values = np.concatenate([one.log_errors for one in self.sources])
        weights = np.concatenate(
            [
                np.full(
                    len(one.log_errors),
                    math.prod(weight for field, value, weight in known if getattr(one, field) != value)
                    / machines[one.name, one.kind],
                )
                for one in self.sources
            ]
        )
        order = np.argsort(values, kind="stable")
        ends = np.cumsum(weights[order])
        found: NDArray[np.float64] = np.interp(levels, (ends - weights[order] / 2) / ends[-1], values[order])
        return found

    def quantiles_elsewhere(
        self, levels: Sequence[float], kind: str = "", devices: str = ""
    ) -> NDArray[np.float64]:
        """Quantiles for a step that none of these publishers measured; float64 [levels].

        Around the median they are wider by √(1 + 1/K): the error of a mean of K publishers adds to that of one more,
        where the K publishers are independent.
        """
        publishers = len({one.publisher for one in self.sources})
        middle, found = (self.quantiles(one, kind, devices) for one in ([0.5], levels))
        wider: NDArray[np.float64] = middle + (found - middle) * math.sqrt(1 + 1 / publishers)
        return wider

    @property
    def carried_spread(self) -> float:
        """Root mean square of the carried errors; 0 where there are none."""
        squares = [one.log_error**2 for one in self.carried]
        return math.sqrt(sum(squares) / len(squares)) if squares else 0.0


def devices_of(bundle: Bundle) -> str:
    """The kind of a bundle's devices: `cpu`, `cuda` or `rocm`; empty where they are of several."""
    kinds = {one.kind for one in bundle.manifest.compute}
    return kinds.pop() if len(kinds) == 1 else ""


@cache
def shipped_step_errors() -> StepErrors:
    """Errors of the steps in validate/."""
    table = json.loads(STEP_ERRORS.read_text(encoding="utf-8"))
    return StepErrors(
        sources=tuple(
            ErrorsOfSource(**{**row, "log_errors": tuple(row["log_errors"])}) for row in table["sources"]
        ),
        carried=tuple(CarriedError(**row) for row in table["carried"]),
    )


def is_carried(stack: Stack | None, bundle: Bundle) -> bool:
    """Whether a stack was fitted to steps of other devices than the bundle's; one chip's memories do not matter."""
    if stack is None or not stack.runs:
        return False
    if bundle.digest in {one.bundle_digest for one in stack.runs}:
        return False
    here = [device_named(one.device_name) for one in bundle.manifest.compute]
    known = all_hardware()
    there = [device(known[one.asked].device) for one in stack.runs if one.asked in known]
    return not any(one.is_chip_of(other) for one in here if one for other in there)
