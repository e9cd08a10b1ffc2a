"""How far operators were off that one device's measurements answered for another: `transfers.csv`, per law and pair.

The table is made by `make datasets` from devices whose measurements ship: every regressor of one
is asked for what was measured on the others.
"""

import csv
from collections.abc import Iterable
from functools import cache
from math import log

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.hardware.devices import device
from kernelcast.runtime.operators import OPERATORS, Direction, Key
from kernelcast.runtime.shipped import TRANSFERS


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferError:
    """Errors of one operator's times carried from `origin` to `target`, over `rows` workloads.

    `by` is what answered (`layer_norm forward`), empty where the operator itself did. `source` says who measured the
    target, empty where its own bundle was trained on the rows. `median_log` of log(predicted / measured);
    `median_error` of its absolute value, as a fraction; 90 % of absolute values are within `log_half_width`.
    """

    key: Key
    by: str
    origin: str
    target: str
    source: str
    rows: int
    median_log: float
    median_error: float
    log_half_width: float

    @property
    def is_within_architecture(self) -> bool:
        """Whether both devices run the same kernels."""
        return device(self.origin).architecture == device(self.target).architecture


@cache
def transfer_errors() -> tuple[TransferError, ...]:
    """All that were measured."""
    with TRANSFERS.open(encoding="utf-8", newline="") as file:
        return tuple(
            TransferError(
                key=(row["operator"], Direction(row["direction"])),
                **{name: row[name] for name in ("by", "origin", "target", "source")},
                rows=int(row["rows"]),
                median_log=float(row["median_log"]),
                median_error=float(row["median_error"]),
                log_half_width=float(row["log_half_width"]),
            )
            for row in csv.DictReader(file)
        )


def transfer_log_half_width(key: Key, origin: str, target: str) -> float:
    """Half-width of log(time) that holds 90 % of an operator's times carried from one device to another.

    Of the pair itself where it was measured; else the widest of the operator's pairs, of one architecture where
    both devices are of one and such a pair was measured; else the median of all pairs of operators of its class. One
    chip with other memory is off by no more than the ratio of the memories' rates.
    """
    known = transfer_errors()
    own = [one for one in known if one.key == key and not one.by and one.origin != one.target]
    pair = [one.log_half_width for one in own if (one.origin, one.target) == (origin, target)]
    if pair:
        return max(pair)
    start, end = device(origin), device(target)
    if start.architecture == end.architecture:
        own = [one for one in own if one.is_within_architecture] or own
    operator_class = OPERATORS[key[0]].operator_class
    alike = [one for one in known if OPERATORS[one.key[0]].operator_class is operator_class]
    found = (
        max(one.log_half_width for one in own)
        if own
        else _upper_median(one.log_half_width for one in alike or known)
    )
    if start.is_chip_of(end):
        return min(found, abs(log(start.memory_bytes_per_s / end.memory_bytes_per_s)))
    return found


def _upper_median(values: Iterable[float]) -> float:
    found = sorted(values)
    return found[len(found) // 2]
