"""`kernelcast models`."""

from typing import Any

import click

from kernelcast.cli import completion, option
from kernelcast.cli.fields import print_notes
from kernelcast.cli.tables import text_table
from kernelcast.cli.terminal import Shown
from kernelcast.runtime import ModelConfig
from kernelcast.runtime.dataclass import asdict
from kernelcast.runtime.request.models import built_in_names, find_model
from kernelcast.runtime.step.parameters import active_parameters, total_parameters


@click.command("models", short_help="List built-in models, or show how a model file is read.")
@click.argument("names", nargs=-1, metavar="[NAME|FILE]...", shell_complete=completion.model_names)
@option.json
def models(names: tuple[str, ...]) -> Shown:
    """List the built-in models: parameters, parameters active per token, and sequence length.

    With names or files: only these models, and all fields of a single one.

    \b
    kernelcast models
    kernelcast models meta-llama/Llama-3.1-8B
    kernelcast models config.json --json
    """
    found = [find_model(name) for name in names or built_in_names()]
    for one in found:
        print_notes(one)

    def show() -> None:
        if len(names) == 1:
            rows = [(name, f"{value}") for name, value in _values(found[0].model).items()]
            click.echo(text_table(("field", "value"), rows))
        else:
            heads = ("name", "parameters", "active per token", "layers", "hidden", "sequence length")
            click.echo(text_table(heads, [_row(one.model) for one in found]))

    return Shown([one.with_notes(_values(one.model)) for one in found], show)


def _values(model: ModelConfig) -> dict[str, Any]:
    counts = {"parameters": total_parameters(model), "active_parameters": active_parameters(model)}
    return {**asdict(model), **counts}


def _row(model: ModelConfig) -> tuple[str, ...]:
    counts = (total_parameters(model), active_parameters(model), model.layers, model.hidden_size)
    return (model.name, *(f"{count:,}" for count in (*counts, model.sequence_length)))
