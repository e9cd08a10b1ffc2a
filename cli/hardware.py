"""`kernelcast hardware`: what ships for whom, and how each operator of it is known."""

from dataclasses import asdict, dataclass
from math import exp
from typing import Any

import click

from kernelcast.cli import completion
from kernelcast.cli.options import json_option
from kernelcast.cli.tables import table_of
from kernelcast.cli.terminal import command_line, facts, note, print_json, print_next
from kernelcast.runtime.answers.attention_kernel import answerable_kernels, measured_kernel
from kernelcast.runtime.answers.sources import Source, source_of
from kernelcast.runtime.bundle.file import Bundle, write_bundle
from kernelcast.runtime.bundle.transfer import Transfer
from kernelcast.runtime.catalogue.composition import hardware_bundle
from kernelcast.runtime.catalogue.hardware import Hardware, all_hardware, hardware_named
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.attention_kernels import FUSED
from kernelcast.runtime.hardware.devices import Device, device
from kernelcast.runtime.hardware.sustained import sustained_flops_per_s, sustained_origin
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.views.formatting import amount, gibibytes, percent
from kernelcast.validate.steps import ScoredFile, score_steps, shipped_runs

FORMAT = "kernelcast.hardware/1"
_TYPE = "bfloat16"
_EXAMPLE = "h100-sxm"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownOperator:
    """One direction of an operator: `how` it is known (measured, transferred, substituted, or not), by what, how well.

    `error` is the mean error on held-out rows where it was measured, a fraction; `transfer_error` the factor that 90 %
    of transfers of that operator were within, None where it was measured on the device; `load` is that of the device
    that was measured, empty where it is not stated; `data` says by whom; `kernel` is that of fused attention, None of
    all else and where it is not stated.
    """

    operator: str
    direction: str
    how: str
    by: str
    rows: int | None
    error: float | None
    origin: str | None
    transfer_error: float | None
    load: str | None
    data: str | None
    kernel: str | None


def known_operators(bundle: Bundle) -> list[KnownOperator]:
    """Every direction of every operator that computes and that steps call."""
    found = []
    for row in OPERATORS.values():
        if row.is_collective or row.is_on_request:
            continue
        for direction in row.directions:
            source = source_of((row.name, direction), bundle.entries)
            entry = None if source is None else bundle.entries[source.answered_by]
            transfer = None if entry is None else entry.transfer
            by = "" if source is None else f"{source.answered_by[0]} ({source.answered_by[1]})"
            how = _how(source, transfer)
            found.append(
                KnownOperator(
                    operator=row.name,
                    direction=direction.value,
                    how=how,
                    by=by if how == "substituted" else "",
                    rows=None if entry is None else entry.rows,
                    error=None if entry is None else entry.validation_error,
                    origin=None if transfer is None or not transfer.is_foreign else transfer.origin.device,
                    transfer_error=None
                    if transfer is None or not transfer.is_foreign
                    else exp(transfer.log_half_width),
                    load=None if entry is None else entry.load.value,
                    data=None if entry is None else entry.data,
                    kernel=None if entry is None else entry.kernel,
                )
            )
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


@click.command()
@click.argument("name", metavar="[NAME]", required=False, shell_complete=completion.hardware_names)
@click.option(
    "-o", "--output", metavar="FILE", help="Write its operators as one bundle, to share or to train on."
)
@json_option
def hardware(name: str | None, output: str | None, as_json: bool) -> None:
    """List the devices that answers can be asked for, or show how each operator of one is known.

    `--hardware NAME` of predict, search, walltime and serve takes its operators, and the fabric named here.

    \b
    kernelcast hardware
    kernelcast hardware h100-sxm
    kernelcast hardware h100-sxm -o h100.kcast
    """
    if name is None:
        if output is not None:
            raise UsageError("--output is given without NAME, expected both")
        _list(as_json)
        return
    found = hardware_named(name)
    bundle = hardware_bundle(found.name)
    if output is not None:
        write_bundle(output, bundle.manifest, bundle.files)
    known = known_operators(bundle)
    runs = shipped_runs(found.name)
    steps = score_steps(runs) if runs else ()
    if as_json:
        scored = [{"site": one.file.site, "fabric": one.fabric, **asdict(one.scores[-1])} for one in steps]
        operators = list(map(asdict, known))
        document = {"format": FORMAT, **_values(found), "steps": scored, "operators": operators}
        print_json(document)
        return
    known_steps = [("steps", _score(one)) for one in steps]
    if not steps:
        known_steps = [("steps", "none measured on it are known here: no prediction of a step was compared")]
    loads = ("load", f"{bundle.manifest.loads} (of regressors)")
    click.echo(facts([*_lines(found), loads, ("attention", _attention(bundle)), *known_steps]))
    table = table_of(
        known,
        ("operator", lambda one: one.operator),
        ("direction", lambda one: one.direction),
        ("known", lambda one: f"{one.how}{' by ' + one.by if one.by else ''}"),
        ("from", lambda one: one.origin or ""),
        ("rows", lambda one: "-" if one.rows is None else f"{one.rows:,}"),
        ("held-out error", lambda one: "-" if one.error is None else percent(one.error)),
        ("transfer", lambda one: "" if one.transfer_error is None else f"{one.transfer_error:.2f}×"),
    )
    click.echo("\n" + table)
    note(
        "\ntransfer: the factor that 90 % of times carried over from another device were within (docs/hardware.md)"
    )


def _attention(bundle: Bundle) -> str:
    """Kernels of fused attention that were measured, and those that it can be asked for."""
    measured = [
        f"{direction} {measured_kernel(bundle.entries[source.answered_by], bundle.manifest) or 'not stated'}"
        for direction in (Direction.FORWARD, Direction.BACKWARD)
        if (source := source_of((FUSED, direction), bundle.entries)) is not None
    ]
    others = answerable_kernels(bundle)
    asked = f"--attention-kernel {', '.join(others)}" if others else "no other can be asked for"
    return f"kernel measured: {', '.join(measured)}; {asked}"


def _list(as_json: bool) -> None:
    if as_json:
        listed = [_values(one) for one in all_hardware().values()]
        print_json({"format": FORMAT, "hardware": listed})
        return
    table = table_of(
        all_hardware().values(),
        ("name", lambda one: one.name),
        ("device", lambda one: device(one.device).title),
        ("memory", lambda one: gibibytes(device(one.device).memory_bytes)),
        ("fabric", lambda one: one.fabric),
        ("measured", lambda one: "yes" if one.bundle else "no"),
        ("others from", lambda one: ", ".join(one.donors)),
    )
    click.echo(table)
    print_next((command_line("hardware", _EXAMPLE), "how each operator of it is known, by whom, how well"))


def _score(scored: ScoredFile) -> str:
    """How well measured steps were predicted, over the fabric that their file names."""
    score = scored.scores[-1]
    error = "-" if score.mean_abs_error is None else percent(score.mean_abs_error)
    return (
        f"{scored.file.site}: {error} mean absolute error over fabric {scored.fabric}, "
        f"{score.inside} of {score.predicted} inside the interval (kernelcast validate steps)"
    )


def _values(found: Hardware) -> dict[str, Any]:
    row = device(found.device)
    return {
        "name": found.name,
        "device": row.title,
        "memory_bytes": row.memory_bytes,
        "memory_bytes_per_s": row.memory_bytes_per_s,
        "flops_per_s": dict(row.flops_per_s),
        "power_w": row.power_w,
        "source_of_peaks": row.source,
        "sustained_flops_per_s": sustained_flops_per_s(row, _TYPE),
        "fabric": found.fabric,
        "is_measured": found.bundle is not None,
        "donors": list(found.donors),
        "data": found.data,
    }


def _held(row: Device) -> list[tuple[str, str]]:
    origin, rate = sustained_origin(row), sustained_flops_per_s(row, _TYPE)
    if origin is None or rate is None:
        return []
    of = "long matrix products" if origin is row else f"the share of the peak that the {origin.title} holds"
    return [("held", f"{amount(rate, 'FLOP/s')} in 16 bits under load ({of}; docs/hardware.md)")]


def _lines(found: Hardware) -> list[tuple[str, str]]:
    row = device(found.device)
    rates = ", ".join(f"{dtype} {amount(rate, 'FLOP/s')}" for dtype, rate in row.flops_per_s.items())
    return [
        ("device", row.title),
        ("memory", f"{gibibytes(row.memory_bytes)} at {amount(row.memory_bytes_per_s, 'B/s')}"),
        ("peaks", f"{rates} ({row.source})"),
        *_held(row),
        ("fabric", f"{found.fabric} (kernelcast fabric show {found.fabric})"),
        *([("measured", found.data)] if found.data else []),
        *(("others", hardware_named(donor).data) for donor in found.donors),
    ]
