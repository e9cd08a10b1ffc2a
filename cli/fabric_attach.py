"""`kernelcast fabric attach`: a description into a bundle that is trained already."""

from pathlib import Path

import click

from kernelcast.cli.options import PATH
from kernelcast.runtime.bundle.described_fabric import with_description
from kernelcast.runtime.bundle.file import read_bundle, write_bundle
from kernelcast.runtime.hardware.fabric_file import fabric_named, read_fabric


@click.command(short_help="Put a description into a bundle, without training again.")
@click.argument("name", metavar="NAME|FILE")
@click.option("--bundle", required=True, metavar="FILE", help="Bundle of regressors (.kcast).")
@click.option("-o", "--output", required=True, type=PATH, metavar="FILE", help="The bundle to write.")
def attach(name: str, bundle: str, output: Path) -> None:
    """Put the description of a bundle's fabric into it: its measured layouts are then extended to all others.

    Nothing is trained again; the regressors stay as they are. A description that the bundle held is replaced.

    \b
    kernelcast fabric attach ours.toml --bundle h100.kcast -o h100-described.kcast
    """
    fabric = read_fabric(name) if "/" in name or name.endswith(".toml") else fabric_named(name)
    read = read_bundle(bundle)
    manifest = with_description(read.manifest, fabric)
    digest = write_bundle(output, manifest, read.files)
    click.echo(f"{output}: {fabric.description} (SHA-256 {digest[:12]})")
