"""Rates that devices hold under load: `shipped/sustained.toml`, measured with long matrix products."""

import tomllib
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.hardware.devices import Device, devices
from kernelcast.runtime.shipped import SUSTAINED

_LAW = "power"
_SHARES = {
    "bfloat16": "",
    "float16": "",
    "float8_e4m3fn": "-float8",
    "float8_e5m2": "-float8",
    "float4_e2m1fn_x2": "-float4",
}
"""Element types that shares are known of, and what is added to the device's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """`share` of peak FLOP/s that nine of ten long matrix products stay below, of `rows`; of 1, a maker's fastest one.

    `burst` is the share that one in a thousand of the short ones exceeds; `source` names the table.
    """

    share: float
    rows: int
    source: str
    burst: float | None = None


@cache
def sustained() -> Mapping[str, Sustained]:
    """By device, with the name of the element type after it where that is not 16 bit; most devices have none."""
    return MappingProxyType({name: Sustained(**row) for name, row in _table().items() if name != _LAW})


def power_exponent(architecture: str) -> float:
    """Sustained rates of one chip at two power limits are as the limits to this power."""
    law = _table()[_LAW]
    return float(law.get(architecture, law["exponent"]))


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(SUSTAINED.read_text(encoding="utf-8"))


def sustained_origin(of: Device, dtype: str = "bfloat16") -> Device | None:
    """The device whose share answers for `of`: itself, or the nearest in power limit of its architecture."""
    if dtype not in _SHARES:
        return None
    known = [one for one in devices().values() if one.name + _SHARES[dtype] in sustained()]
    if of in known:
        return of
    alike = [one for one in known if one.architecture == of.architecture]
    return min(alike, key=lambda one: abs(one.power_w - of.power_w), default=None)


def sustained_flops_per_s(of: Device, dtype: str, power_limit_w: float = 0.0) -> float | None:
    """FLOP/s that GEMMs sustain on a device in a step; None if no device of its architecture was measured.

    With another power limit than the device's, by `clock_scale`.
    """
    peak, origin = of.peak_flops_per_s(dtype), sustained_origin(of, dtype)
    if peak is None or origin is None:
        return None
    return sustained()[origin.name + _SHARES[dtype]].share * peak * clock_scale(of, power_limit_w)


def clock_scale(of: Device, power_limit_w: float = 0.0) -> float:
    """Rates of computing at another power limit than the device's over those at its own, by the law that two limits of
    one chip were measured to follow; 1 without another limit.
    """
    return (power_limit_w / of.power_w) ** power_exponent(of.architecture) if power_limit_w else 1.0
