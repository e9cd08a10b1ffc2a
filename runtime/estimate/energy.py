"""Energy of a step, where the power of the device's operators is known.

Every call takes its time at the power that its shares of the device's peaks give (`PowerLaw`); collectives and waiting
count as idle. Energy of a step means its devices alone: no hosts, network or cooling.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kernelcast.runtime.answers.asking import Question
from kernelcast.runtime.answers.predictor import Answer
from kernelcast.runtime.catalogue import PowerLaw
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.hardware.devices import ELEMENT_BYTES, Device
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.operators import OPERATORS

_J_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Energy of one step on all devices, in J, computed by `law`; `operators_j` by operator, the rest is idle."""

    step_j: float
    mean_power_w: float
    operators_j: Mapping[str, float]
    law: PowerLaw

    @property
    def step_kwh(self) -> float:
        """The same in kWh."""
        return self.step_j / _J_PER_KWH

    def to_dict(self) -> dict[str, Any]:
        return {
            **values_of(self, "step_j", "step_kwh", "mean_power_w"),
            "operators_j": dict(self.operators_j),
            **values_of(self.law, "rows", "median_error", "source"),
        }


def energy_of(
    times_s: Mapping[Question, float],
    *,
    answers: Mapping[Question, Answer],
    replicas: int,
    devices: int,
    step_time_s: float,
    of: Device,
    law: PowerLaw,
    dtype: str,
) -> Energy:
    """Energy of one step: `times_s` [s] sums calls of one device per stage, `answers` are times of one call, `replicas`
    devices do the same, and all `devices` idle for the rest of `step_time_s`.
    """
    usual = of.peak_flops_per_s(dtype) or of.flops_per_s["float16"]
    operators_j: dict[str, float] = {}
    busy_s = 0.0
    for one, time_s in times_s.items():
        (name, direction), vector, _ = one
        row = OPERATORS[name]
        if row.is_collective or time_s <= 0:
            continue
        call_s, computed_in = answers[one][0] / 1e6, row.dtype_in(dtype)
        peak, element_bytes = of.peak_flops_per_s(computed_in) or usual, ELEMENT_BYTES.get(computed_in, 2)
        flops_per_s = row.flops(direction, vector) / call_s
        bytes_per_s = row.moved_bytes(direction, vector, element_bytes) / call_s
        power_w = law.power_w(flops_per_s / peak, bytes_per_s / of.memory_bytes_per_s)
        operators_j[name] = operators_j.get(name, 0.0) + replicas * time_s * power_w
        busy_s += replicas * time_s
    idle_j = max(0.0, devices * step_time_s - busy_s) * law.idle_w
    step_j = sum(operators_j.values()) + idle_j
    return Energy(
        step_j=step_j,
        mean_power_w=step_j / (devices * step_time_s),
        operators_j=MappingProxyType(operators_j),
        law=law,
    )
