"""`kernelcast probe`."""

from dataclasses import asdict
from typing import Any

import click

from kernelcast.cli.options import device_option, threads_option
from kernelcast.cli.terminal import say
from kernelcast.collector.machine.peaks import measure_peaks
from kernelcast.collector.machine.probe import probe as probe_machine
from kernelcast.collector.machine.probe import resolve_device
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.json_text import json_text
from kernelcast.runtime.views.formatting import amount

FORMAT = "kernelcast.fingerprints/1"


@click.command()
@device_option
@threads_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def probe(device: str, threads: int, as_json: bool) -> None:
    """Show what decides speed here: the compute, fabric and software fingerprints, and peaks of the device.

    Fingerprints are the keys of everything that is measured. They contain no host name, user, serial or address. Peaks
    are measured, in a second or two; no fingerprint contains them.

    \b
    kernelcast probe
    kernelcast probe --json
    """
    where = resolve_device(device)
    found, peaks = probe_machine(where, threads=threads), measure_peaks(where, threads=threads)
    parts: dict[str, ComputeFingerprint | FabricFingerprint | SoftwareFingerprint] = {
        "compute": found.compute,
        "fabric": found.fabric,
        "software": found.software,
    }
    if as_json:
        document = {
            name: {"digest": part.digest, "description": part.description, "fields": part.to_dict()}
            for name, part in parts.items()
        }
        click.echo(json_text({"format": FORMAT, **document, "peaks": asdict(peaks)}, indent=2))
        return
    for name, part in parts.items():
        say(f"{name:9} {part.digest}  {part.description}")
        for field, value in part.to_dict().items():
            if value not in ("", 0, [], False):
                say(f"  {field:21} {_readable(value)}")

    rates = ", ".join(f"{amount(rate, 'FLOP/s')} {dtype}" for dtype, rate in peaks.flops_per_s.items())
    say(f"measured  matrix products {rates}; copies {amount(peaks.memory_bytes_per_s, 'B/s')}")


def _readable(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
