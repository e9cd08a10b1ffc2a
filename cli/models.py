"""`kernelcast models`."""

from dataclasses import asdict
from typing import Any

import click

from kernelcast.cli import completion
from kernelcast.cli.options import json_option, print_notes
from kernelcast.cli.tables import text_table
from kernelcast.cli.terminal import print_json
from kernelcast.runtime import ModelConfig
from kernelcast.runtime.request.models import built_in_names, find_model
from kernelcast.runtime.step.parameters import active_parameters, total_parameters


@click.command("models", short_help="List built-in models, or how a model's file is read.")
@click.argument("names", nargs=-1, metavar="[NAME|FILE]...", shell_complete=completion.model_names)
@json_option
def models(names: tuple[str, ...], as_json: bool) -> None:
    """List the built-in models with their parameters, those that a token uses, and the tokens of a sequence.

    With names or files, those models alone; of one, all its fields.

    \b
    kernelcast models
    kernelcast models meta-llama/Llama-3.1-8B
    kernelcast models config.json --json
    """
    found = [find_model(name) for name in names or built_in_names()]
    for one in found:
        print_notes(one)
    if as_json:
        print_json([one.with_notes(_values(one.model)) for one in found])
    elif len(names) == 1:
        rows = [(name, f"{value}") for name, value in _values(found[0].model).items()]
        click.echo(text_table(("field", "value"), rows))
    else:
        heads = ("name", "parameters", "of a token", "layers", "hidden", "tokens of a sequence")
        click.echo(text_table(heads, [_row(one.model) for one in found]))


def _values(model: ModelConfig) -> dict[str, Any]:
    counts = {"parameters": total_parameters(model), "active_parameters": active_parameters(model)}
    return {**asdict(model), **counts}


def _row(model: ModelConfig) -> tuple[str, ...]:
    counts = (total_parameters(model), active_parameters(model), model.layers, model.hidden_size)
    return (model.name, *(f"{count:,}" for count in (*counts, model.sequence_length)))
