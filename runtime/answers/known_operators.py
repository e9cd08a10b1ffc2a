"""How each operator of a bundle is known: measured, transferred, substituted or not at all."""

from math import exp

from kernelcast.runtime.answers.sources import Source, source_of
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.bundle.transfer import Transfer
from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.operators import OPERATORS


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownOperator:
    """One direction of an operator: `how` it is known (measured, transferred, substituted, not known), `by` which
    substitute, from which `data`, and its mean `error` on held-out rows, a fraction.
    `transfer_error` is the factor that 90 % of its transfers were within, None if measured on this device;
    `load` and `kernel` are those measured.
    """

    operator: str
    direction: str
    how: str
    by: str
    rows: int | None = None
    error: float | None = None
    origin: str | None = None
    transfer_error: float | None = None
    load: str | None = None
    data: str | None = None
    kernel: str | None = None


def known_operators(bundle: Bundle) -> list[KnownOperator]:
    """Every direction of every compute operator that steps call."""
    found = []
    for row in OPERATORS.values():
        if row.is_collective or row.is_on_request:
            continue
        for direction in row.directions:
            source = source_of((row.name, direction), bundle.entries)
            entry = None if source is None else bundle.entries[source.answered_by]
            how = _how(source, None if entry is None else entry.transfer)
            by = "" if source is None or how != "substituted" else "{} ({})".format(*source.answered_by)
            known = KnownOperator(operator=row.name, direction=direction.value, how=how, by=by)
            if entry is not None:
                known = replace(
                    known,
                    rows=entry.rows,
                    error=entry.validation_error,
                    load=entry.load.value,
                    data=entry.data,
                    kernel=entry.kernel,
                )
                if entry.transfer is not None and entry.transfer.is_foreign:
                    factor = exp(entry.transfer.log_half_width)
                    known = replace(known, origin=entry.transfer.origin.device, transfer_error=factor)
            found.append(known)
    return found


def _how(source: Source | None, transfer: Transfer | None) -> str:
    if source is None:
        return "not known"
    if source.is_part:
        return "measured as a sum"
    if source.order:
        return "measured as the forward product"
    if source.is_substitute:
        return "substituted"
    return "measured" if transfer is None or not transfer.is_foreign else "transferred"
