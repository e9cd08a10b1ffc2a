"""What a device draws while it works: a law of two rates, fitted to operators whose power was measured."""

import tomllib
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.shipped import POWER


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """Power in W: idle + `of_flops_w` · share of peak FLOP/s + `of_bandwidth_w` · share of bandwidth, up to a limit.

    Fitted to `rows` matrix products; `median_error` of a row's power and `energy_error` of all rows' energy are
    fractions; `source` says who measured them.
    """

    idle_w: float
    of_flops_w: float
    of_bandwidth_w: float
    limit_w: float
    rows: int
    median_error: float
    energy_error: float
    source: str

    def power_w(self, flops_share: float, bandwidth_share: float) -> float:
        """Power at some shares of both peaks."""
        drawn_w = self.idle_w + self.of_flops_w * flops_share + self.of_bandwidth_w * bandwidth_share
        return min(self.limit_w, drawn_w)


@cache
def power_laws() -> Mapping[str, PowerLaw]:
    """By device; most devices have none."""
    return MappingProxyType(
        {name: PowerLaw(**row) for name, row in tomllib.loads(POWER.read_text(encoding="utf-8")).items()}
    )
