"""`kernelcast validate`: each of its verbs is in a file of its own, imported when it is used."""

from collections.abc import Mapping

import click

from kernelcast.cli.lazy import LazyGroup, Verb

VERBS: Mapping[str, Verb] = {
    "published": Verb(
        "validate_published",
        "published",
        "train",
        "Predict steps that the method's authors published, from their data.",
    ),
    "fabrics": Verb(
        "validate_fabrics",
        "fabrics",
        "train",
        "Predict published collectives from descriptions of their fabrics.",
    ),
    "prior": Verb(
        "validate_prior",
        "prior",
        "train",
        "Predict a device's operators from a few of its points and another device.",
    ),
    "steps": Verb(
        "validate_steps", "steps", "all", "Score predictions against training steps that others measured."
    ),
    "add": Verb("validate_add", "add", "all", "Add your own measured steps to those that are scored."),
    "errors": Verb(
        "validate_errors",
        "errors",
        "all",
        "What sums of operators get wrong in measured steps, by source.",
    ),
    "run": Verb("validate_run", "run", "collector", "Train on this machine and compare with predictions."),
}


@click.group(cls=LazyGroup, verbs=VERBS)
def validate() -> None:
    """Predict training steps and collectives that were measured, and print predicted, measured and error.

    \b
    kernelcast validate steps
    kernelcast validate add ours.toml
    kernelcast validate published Perlmutter
    kernelcast validate fabrics data
    kernelcast validate prior a100-sxm gh200.db
    kernelcast validate run --bundle here.kcast --db bench.db
    """
