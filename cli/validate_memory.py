"""`kernelcast validate memory`."""

from pathlib import Path

import click

from kernelcast.cli import option
from kernelcast.cli.tables import print_table, signed_percent
from kernelcast.cli.terminal import Shown, is_quiet, say
from kernelcast.runtime.output_file import write_pieces
from kernelcast.runtime.views.formatting import gibibytes, percent
from kernelcast.validate.memory import MemoryValidation, covered, spreads_toml, validate_memory


@click.command(short_help="Predict the memory of training steps measured by others.")
@click.argument("directory", metavar="DIR", type=option.PATH)
@option.flag("--each", "Show every case, the largest errors first.")
@option.file("--output", "-o", "Write the spread of the errors (TOML).")
@option.json
def memory(directory: Path, each: bool, output: Path | None) -> Shown:
    """Predict the memory of measured steps, and compare it with the logged memory.

    DIR holds mlperf/ and memory/: Megatron-LM's functional tests, with their own arguments, and torchtitan's
    benchmarks; SimuMax's steps ship. Nothing is fitted to them. Cases with unsupported settings are counted by reason.
    Probabilities that a layout fits follow from runtime/shipped/memory_errors.toml, which --output can replace.

    \b
    kernelcast validate memory data
    kernelcast validate memory data --each
    """
    found = validate_memory(directory)
    if output is not None:
        write_pieces(output, [spreads_toml(found)])
    return Shown(found.to_dict(), lambda: _show(found, each))


def _show(found: MemoryValidation, each: bool) -> None:
    print_table(
        found.groups,
        ("source", lambda one: one.source),
        ("kind", lambda one: one.kind),
        ("format", lambda one: one.number_format),
        ("cases", lambda one: f"{one.cases}"),
        ("median", lambda one: percent(one.median_abs_error)),
        ("mean", lambda one: percent(one.mean_abs_error)),
        ("90 %", lambda one: percent(one.tenth_largest)),
        ("signed", lambda one: signed_percent(one.mean_error)),
    )
    click.echo()
    print_table(
        found.fitting,
        ("source", lambda one: one[0]),
        ("predicted to fit", lambda one: f"{one[1]}"),
        ("of steps that ran", lambda one: f"{one[2]}"),
    )
    click.echo()
    print_table(
        covered(found).items(),
        ("source", lambda one: one[0]),
        ("inside the 90 % interval of other models", lambda one: f"{one[1][0]}"),
        ("cases", lambda one: f"{one[1][1]}"),
    )
    if each:
        click.echo()
        print_table(
            sorted(found.measured, key=lambda one: -abs(one.error or 0)),
            ("source", lambda one: one.case.source),
            ("case", lambda one: one.case.name),
            ("measured", lambda one: gibibytes(int(one.case.measured_bytes or 0))),
            ("predicted", lambda one: gibibytes(one.predicted_bytes)),
            ("error", lambda one: signed_percent(one.error)),
        )
    if not is_quiet():
        say("\n" + "\n".join(f"not predicted: {count} × {why}" for why, count in found.left_out.items()))
        say(f"settings without effect here: {', '.join(f'{key} {n}' for key, n in found.unread.items())}")
