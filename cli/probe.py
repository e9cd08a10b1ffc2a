"""`kernelcast probe`."""

import json
from typing import Any

import click

from kernelcast.cli.options import device_option, threads_option
from kernelcast.collector.machine.probe import probe as probe_machine
from kernelcast.collector.machine.probe import resolve_device
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint

FORMAT = "kernelcast.fingerprints/1"


@click.command()
@device_option
@threads_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def probe(device: str, threads: int, as_json: bool) -> None:
    """Show what decides speed here: the compute, fabric and software fingerprints.

    They are the keys of everything that is measured. They contain no host name, user, serial or address.

    \b
    kernelcast probe
    kernelcast probe --json
    """
    found = probe_machine(resolve_device(device), threads=threads)
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
        click.echo(json.dumps({"format": FORMAT, **document}, indent=2))
        return
    for name, part in parts.items():
        click.echo(f"{name:9} {part.digest}  {part.description}")
        for field, value in part.to_dict().items():
            if value not in ("", 0, [], False):
                click.echo(f"  {field:21} {_readable(value)}")


def _readable(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
