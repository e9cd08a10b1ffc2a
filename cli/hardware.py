"""`kernelcast hardware`: what ships for whom, and how each operator of it is known."""

import json
from dataclasses import dataclass
from typing import Any

import click

from kernelcast.cli.options import json_option
from kernelcast.cli.tables import text_table
from kernelcast.runtime.answers.sources import source_of
from kernelcast.runtime.bundle.file import Bundle, read_bundle
from kernelcast.runtime.hardware.devices import device, devices
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.shipped.composition import hardware_bundle
from kernelcast.runtime.shipped.hardware import Hardware, all_hardware, hardware_named
from kernelcast.runtime.views.formatting import amount, gibibytes, percent

FORMAT = "kernelcast.hardware/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownOperator:
    """One direction of an operator: `how` it is known (measured, substituted, or not), by what, how well."""

    operator: str
    direction: str
    how: str
    by: str
    rows: int | None
    error: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `error` is the mean error on held-out rows, a fraction."""
        return {name: getattr(self, name) for name in ("operator", "direction", "how", "by", "rows", "error")}


def known_operators(bundle: Bundle) -> list[KnownOperator]:
    """Every direction of every operator that computes and that steps call."""
    found = []
    for row in OPERATORS.values():
        if row.is_collective or row.is_on_request:
            continue
        for direction in row.directions:
            source = source_of((row.name, direction), bundle.entries)
            entry = None if source is None else bundle.entries[source.answered_by]
            how = "not known" if source is None else "substituted" if source.is_substitute else "measured"
            if source is not None and source.is_part:
                how = "measured as a sum"
            by = "" if source is None else f"{source.answered_by[0]} ({source.answered_by[1]})"
            found.append(
                KnownOperator(
                    operator=row.name,
                    direction=direction.value,
                    how=how,
                    by=by if how == "substituted" else "",
                    rows=None if entry is None else entry.rows,
                    error=None if entry is None else entry.validation_error,
                )
            )
    return found


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@json_option
def hardware(name: str | None, as_json: bool) -> None:
    """List the hardware whose measurements ship, or show what is known of one.

    `--hardware NAME` of predict, search, walltime and serve takes its bundle, and the fabric named here.

    \b
    kernelcast hardware
    kernelcast hardware a100-sxm
    """
    if name is None:
        _list(as_json)
        return
    found = hardware_named(name)
    known = known_operators(hardware_bundle(found.name))
    if as_json:
        document = {"format": FORMAT, **_values(found), "operators": [one.to_dict() for one in known]}
        click.echo(json.dumps(document, indent=2))
        return
    for label, text in _lines(found):
        click.echo(f"{label:9} {text}")
    rows = [
        (
            one.operator,
            one.direction,
            f"{one.how}{' by ' + one.by if one.by else ''}",
            "-" if one.rows is None else f"{one.rows:,}",
            "-" if one.error is None else percent(one.error),
        )
        for one in known
    ]
    click.echo("\n" + text_table(("operator", "direction", "known", "rows", "held-out error"), rows))


def _list(as_json: bool) -> None:
    if as_json:
        listed = [_values(one) for one in all_hardware().values()]
        click.echo(json.dumps({"format": FORMAT, "hardware": listed}, indent=2))
        return
    rows = [
        (one.name, device(one.name).title, gibibytes(device(one.name).memory_bytes), one.fabric, one.data)
        for one in all_hardware().values()
    ]
    click.echo(text_table(("name", "device", "memory", "fabric", "measured on"), rows))
    others = [one for one in devices() if one not in shipped_hardware()]
    click.echo(f"\nOnly peak rates are known of {', '.join(others)}.")


def _values(found: Hardware) -> dict[str, Any]:
    row = device(found.name)
    return {
        "name": found.name,
        "device": row.title,
        "memory_bytes": row.memory_bytes,
        "memory_bytes_per_s": row.memory_bytes_per_s,
        "flops_per_s": dict(row.flops_per_s),
        "power_w": row.power_w,
        "source_of_peaks": row.source,
        "fabric": found.fabric,
        "data": found.data,
    }


def _lines(found: Hardware) -> list[tuple[str, str]]:
    row = device(found.name)
    rates = ", ".join(f"{dtype} {amount(rate, 'FLOP/s')}" for dtype, rate in row.flops_per_s.items())
    return [
        ("device", row.title),
        ("memory", f"{gibibytes(row.memory_bytes)} at {amount(row.memory_bytes_per_s, 'B/s')}"),
        ("peaks", f"{rates} ({row.source})"),
        ("fabric", f"{found.fabric} (kernelcast fabric show {found.fabric})"),
        ("measured", found.data),
    ]
