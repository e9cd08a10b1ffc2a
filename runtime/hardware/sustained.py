"""Rates that devices hold under load: `shipped/sustained.toml`, measured with long matrix products."""

import tomllib
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.hardware.devices import Device, device
from kernelcast.runtime.shipped import SUSTAINED

_FLOAT8 = "-float8"
_SHARES = {"bfloat16": "", "float16": "", "float8_e4m3fn": _FLOAT8, "float8_e5m2": _FLOAT8}
"""Element types that shares are known of, and what is added to the device's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """`share` of peak FLOP/s that nine of ten long matrix products stay below, of `rows`.

    `burst` is the share that one in a thousand of the short ones exceeds; `source` names the table.
    """

    share: float
    rows: int
    burst: float
    source: str


@cache
def sustained() -> Mapping[str, Sustained]:
    """By device, with the name of the element type after it where that is not 16 bit; most devices have none."""
    return MappingProxyType(
        {name: Sustained(**row) for name, row in tomllib.loads(SUSTAINED.read_text(encoding="utf-8")).items()}
    )


def sustained_origin(of: Device, dtype: str = "bfloat16") -> Device | None:
    """The device whose share answers for `of`: itself, or the nearest in power limit of its architecture."""
    if dtype not in _SHARES:
        return None
    suffix = _SHARES[dtype]
    known = {name.removesuffix(_FLOAT8) for name in sustained() if name.endswith(_FLOAT8) == bool(suffix)}
    if of.name in known:
        return of
    alike = [one for one in map(device, sorted(known)) if one.architecture == of.architecture]
    return min(alike, key=lambda one: abs(one.power_w - of.power_w), default=None)


def sustained_flops_per_s(of: Device, dtype: str) -> float | None:
    """FLOP/s that GEMMs sustain on a device in a step; None if no device of its architecture was measured."""
    peak, origin = of.peak_flops_per_s(dtype), sustained_origin(of, dtype)
    if peak is None or origin is None:
        return None
    return sustained()[origin.name + _SHARES[dtype]].share * peak
