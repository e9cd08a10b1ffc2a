"""`kernelcast stack`: each of its verbs is in a file of its own, imported when it is used."""

from collections.abc import Mapping

import click

from kernelcast.cli.lazy import LazyGroup, Verb

VERBS: Mapping[str, Verb] = {
    "list": Verb("stack_list", "list_", "", "List the software stacks that ship."),
    "fit": Verb("stack_fit", "fit", "", "Fit a stack's factors to measured steps."),
}


@click.group(cls=LazyGroup, verbs=VERBS)
def stack() -> None:
    """What training software does to sums of operators: factors of attention and of all else that computes, and the
    share of collectives beside computing that shows.

    Fitted once to a few measured steps, they are carried to any hardware and fabric: predict, search, walltime,
    serve and validate steps take a stack as --stack.

    \b
    kernelcast stack list
    kernelcast stack fit site.toml -o ours.toml
    kernelcast predict --hardware h100-sxm --model llama-2-7b --dp 8 --zero 3 --micro-batch 1 --global-batch 64 \\
      --stack ours.toml
    """
