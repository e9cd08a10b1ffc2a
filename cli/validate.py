"""`kernelcast validate`: its verbs are imported when they are used."""

from collections.abc import Mapping

import click

from kernelcast.cli.lazy import LazyGroup, Verb

# fmt: off
VERBS: Mapping[str, Verb] = {
    "published": Verb("validate_data", "published", "train",
                      "Predict the paper's published steps from its operator data."),
    "fabrics": Verb("validate_data", "fabrics", "train",
                    "Predict published collectives from descriptions of their fabrics."),
    "memory": Verb("validate_memory", "memory", "all", "Predict the memory of training steps measured by others."),
    "prior": Verb("validate_data", "prior", "train",
                  "Predict a device's operators from a few of its points and another device."),
    "steps": Verb("validate_steps", "steps", "all", "Score predictions against training steps measured by others."),
    "add": Verb("validate_steps", "add", "all", "Add your own measured steps to those that are scored."),
    "errors": Verb("validate_steps", "errors", "all", "Show measured / predicted ratios of the steps that ship."),
    "plans": Verb("validate_plans", "plans", "", "Compare plans with published runs: goodput and GPU-hours."),
    "run": Verb("validate_run", "run", "collector", "Train on this machine and compare with predictions."),
}
# fmt: on


@click.group(cls=LazyGroup, verbs=VERBS)
def validate() -> None:
    """Compare predictions with measured training steps and collectives.

    \b
    kernelcast validate steps
    kernelcast validate add ours.toml
    kernelcast validate published Perlmutter
    kernelcast validate fabrics data
    kernelcast validate memory data
    kernelcast validate prior a100-sxm gh200.db
    kernelcast validate run --bundle here.kcast --db bench.db
    """
