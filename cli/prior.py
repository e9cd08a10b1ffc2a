"""`--prior NAME|FILE.kcast`: another device's bundle, from which a few points lead to this one's."""

from pathlib import Path

import click

from kernelcast.cli.completion import hardware_or_bundle
from kernelcast.runtime.bundle.file import Bundle, read_bundle
from kernelcast.runtime.catalogue.composition import hardware_bundle

prior_option = click.option(
    "--prior",
    metavar="NAME|FILE",
    shell_complete=hardware_or_bundle,
    help="Start from another device: one by name (kernelcast hardware) or a bundle (.kcast), corrected by the points "
    "measured here.",
)


def read_prior(prior: str) -> Bundle:
    """The bundle that `--prior` names.

    Raises:
        UsageError: there is no such hardware.
        DataError: the file is missing, damaged or of another version.
    """
    path = Path(prior)
    return read_bundle(path) if path.suffix == ".kcast" or path.exists() else hardware_bundle(prior)
