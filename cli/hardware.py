"""`kernelcast hardware`: the devices that ship, and how each of their operators is known."""

from typing import Any

import click

from kernelcast.cli import completion, option
from kernelcast.cli.tables import print_table
from kernelcast.cli.terminal import Facts, Shown, command_line, facts, note, print_next
from kernelcast.runtime.answers.asking import answerable_kernels, measured_kernel
from kernelcast.runtime.answers.known_operators import KnownOperator, known_operators
from kernelcast.runtime.answers.sources import source_of
from kernelcast.runtime.bundle.file import Bundle, write_bundle
from kernelcast.runtime.catalogue import Hardware, all_hardware, hardware_bundle, hardware_named
from kernelcast.runtime.dataclass import asdict
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.attention_kernels import FUSED
from kernelcast.runtime.hardware.devices import Device, device
from kernelcast.runtime.hardware.limits import sustained_flops_per_s, sustained_origin
from kernelcast.runtime.json_text import plain_values
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.views.formatting import amount, gibibytes, percent
from kernelcast.validate.steps import ScoredFile, score_steps, shipped_runs

FORMAT = "kernelcast.hardware/1"
_TYPE = "bfloat16"
_EXAMPLE = "h100-sxm"


@click.command()
@click.argument("name", metavar="[NAME]", required=False, shell_complete=completion.hardware_names)
@option.text(
    "-o", "--output", "Write the operators of NAME as one bundle, to share or for --prior.", metavar="FILE"
)
@option.json
def hardware(name: str | None, output: str | None) -> Shown:
    """List the devices that can be predicted, or show the source of each operator's times on one device.

    predict, search, walltime and serve use these times and the device's fabric with --hardware NAME.

    \b
    kernelcast hardware
    kernelcast hardware h100-sxm
    kernelcast hardware h100-sxm -o h100.kcast
    """
    if name is None:
        if output is not None:
            raise UsageError("--output is given without NAME, expected both")
        listed = [_values(one) for one in all_hardware().values()]
        return Shown({"format": FORMAT, "hardware": listed}, _show_list)
    found = hardware_named(name)
    bundle = hardware_bundle(found.name)
    if output is not None:
        write_bundle(output, bundle.manifest, bundle.files)
    known = known_operators(bundle)
    runs = shipped_runs(found.name)
    steps = score_steps(runs) if runs else ()
    document = {
        "format": FORMAT,
        **_values(found),
        "steps": [{"site": one.file.site, "fabric": one.fabric, **asdict(one.scores[-1])} for one in steps],
        "operators": list(map(asdict, known)),
    }
    return Shown(document, lambda: _show(found, bundle, known, steps))


def _show(found: Hardware, bundle: Bundle, known: list[KnownOperator], steps: tuple[ScoredFile, ...]) -> None:
    unknown = "no measured steps of this device: its predictions have not been validated"
    rows: Facts = {
        **_facts(found),
        "load": f"{bundle.manifest.loads} (of regressors)",
        "attention": _attention(bundle),
        "steps": list(map(_score, steps)) or unknown,
    }
    click.echo(facts(rows) + "\n")
    print_table(
        known,
        ("operator", lambda one: one.operator),
        ("direction", lambda one: one.direction),
        ("known", lambda one: f"{one.how}{' by ' + one.by if one.by else ''}"),
        ("from", lambda one: one.origin or ""),
        ("rows", lambda one: "-" if one.rows is None else f"{one.rows:,}"),
        ("held-out error", lambda one: percent(one.error)),
        ("transfer", lambda one: "" if one.transfer_error is None else f"{one.transfer_error:.2f}×"),
    )
    note(
        "\ntransfer: 90 % of the times transferred from another device are within this factor (docs/hardware.md)"
    )


def _attention(bundle: Bundle) -> str:
    """The measured kernels of fused attention, and those that can be selected."""
    measured = [
        f"{direction} {measured_kernel(bundle.entries[source.answered_by], bundle.manifest) or 'not stated'}"
        for direction in (Direction.FORWARD, Direction.BACKWARD)
        if (source := source_of((FUSED, direction), bundle.entries)) is not None
    ]
    others = answerable_kernels(bundle)
    asked = f"--attention-kernel {', '.join(others)}" if others else "no other can be selected"
    return f"kernel measured: {', '.join(measured)}; {asked}"


def _show_list() -> None:
    print_table(
        all_hardware().values(),
        ("name", lambda one: one.name),
        ("device", lambda one: device(one.device).title),
        ("memory", lambda one: gibibytes(device(one.device).memory_bytes)),
        ("fabric", lambda one: one.fabric),
        ("measured", lambda one: "yes" if one.bundle else "no"),
        ("others from", lambda one: ", ".join(one.donors)),
    )
    _show_offers()
    print_next((command_line("hardware", _EXAMPLE), "how each of its operators is known"))


def _show_offers() -> None:
    """Devices that sources of measurements offer, where any were added (kernelcast commons add)."""
    try:
        from kernelcast.cli.commons import print_offers, print_published
        from kernelcast.store.commons.offers import offers, published_files
        from kernelcast.store.commons.sources import read_sources
    except ModuleNotFoundError:  # without the extra there are no sources
        return
    if not read_sources():
        return
    if found := offers():
        click.echo("\nFrom sources of measurements (predict --hardware NAME --from commons)")
        print_offers(found)
    if files := published_files():
        click.echo("\nBundles, fabrics and stacks of sources (--from commons)")
        print_published(files)


def _score(scored: ScoredFile) -> str:
    """Prediction errors of measured steps on the fabric that their file names."""
    score = scored.scores[-1]
    return (
        f"{scored.file.site}: {percent(score.mean_abs_error)} mean absolute error on fabric {scored.fabric}, "
        f"{score.inside} of {score.predicted} inside the interval (kernelcast validate steps)"
    )


def _values(found: Hardware) -> dict[str, Any]:
    row = device(found.device)
    return {
        "name": found.name,
        "device": row.title,
        **plain_values(row, "memory_bytes", "memory_bytes_per_s", "flops_per_s", "power_w"),
        "source_of_peaks": row.source,
        "sustained_flops_per_s": sustained_flops_per_s(row, _TYPE),
        "fabric": found.fabric,
        "is_measured": found.bundle is not None,
        "donors": list(found.donors),
        "data": found.data,
    }


def _sustained(row: Device) -> str | None:
    origin, rate = sustained_origin(row), sustained_flops_per_s(row, _TYPE)
    if origin is None or rate is None:
        return None
    source = "long GEMMs" if origin is row else f"the fraction of peak that the {origin.title} sustains"
    return f"{amount(rate, 'FLOP/s')} in 16 bits ({source}; docs/hardware.md)"


def _facts(found: Hardware) -> Facts:
    row = device(found.device)
    rates = ", ".join(f"{dtype} {amount(rate, 'FLOP/s')}" for dtype, rate in row.flops_per_s.items())
    return {
        "device": row.title,
        "memory": f"{gibibytes(row.memory_bytes)} at {amount(row.memory_bytes_per_s, 'B/s')}",
        "peaks": f"{rates} ({row.source})",
        "sustained": _sustained(row),
        "fabric": f"{found.fabric} (kernelcast fabric show {found.fabric})",
        "measured": found.data or None,
        "others": [hardware_named(donor).data for donor in found.donors],
    }
