"""`--as FRAMEWORK` prints a layout as arguments of a training framework; `predict --layout FILE` reads them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelcast.cli import option
from kernelcast.cli.fields import print_notes
from kernelcast.cli.tables import text_table
from kernelcast.cli.terminal import is_quiet, title, warning
from kernelcast.runtime import Estimate, UsageError
from kernelcast.runtime.errors import shown_path
from kernelcast.runtime.frameworks import NAMES
from kernelcast.runtime.request.fields import LAYOUT
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import FoundModel, ModelConfig
from kernelcast.runtime.request.models import find_model
from kernelcast.runtime.small_file import STDIN, read_small_file, read_small_input

if TYPE_CHECKING:
    from kernelcast.runtime.frameworks.layout_files import LayoutFile, Source
    from kernelcast.runtime.frameworks.software import Chosen

_MOST_BYTES = 1 << 18

as_option = option.choice(
    NAMES, "--as", "printed_as", "Print only the layout, as arguments of this framework; implies --framework."
)
layout_option = option.text(
    "--layout",
    "Read the layout from a script, or from settings of Megatron-LM, torchtitan, DeepSpeed, NeMo or LLM Foundry; "
    "- is standard input.",
    metavar="FILE",
)


def check_alone(*others: str) -> None:
    """Refuse (UsageError) `--as` together with another option, by parameter name, about what is printed."""
    context = click.get_current_context()
    given = [one for one in context.command.params if one.name in others and context.params[one.name]]
    if context.params["printed_as"] is not None and given:
        raise UsageError(f"--as and {given[0].opts[0]} are both given, expected one of them")


def print_layout(framework: str, estimate: Estimate) -> None:
    """Print an estimate's layout; settings that the framework lacks are one line on standard error."""
    from kernelcast.runtime.frameworks.layout_files import write_layout
    from kernelcast.runtime.frameworks.rows import Job

    job = Job(
        model=estimate.model,
        parallelism=estimate.parallelism,
        gpus_per_node=estimate.cluster.gpus_per_node,
        dtype=estimate.provenance.dtype,
    )
    written = write_layout(framework, job)
    click.echo(written.text)
    if written.lost and not is_quiet():
        click.echo(f"warning: {written.warning}", err=True)


def choose_for(
    given: dict[str, Any],
    printed_as: str | None = None,
    *,
    hardware: Collection[str],
    is_open: bool = False,
    file: LayoutFile | None = None,
) -> Chosen:
    """The software of a command's question: `--framework`, else that of its layout's file, else that of `--as`.

    Errors as `choose_software`.
    """
    from kernelcast.runtime.frameworks.software import choose_software

    name = None if file is None else file.name
    implied = name or printed_as
    values = {"framework": implied, **given} if implied else given
    chosen = choose_software(values, hardware=hardware, is_open=is_open, file=name)
    for note in () if is_quiet() else chosen.notes:
        click.echo(warning(note), err=True)
    return chosen


def layout_words(layout: Parallelism, *, also: Collection[str] = ()) -> list[str]:
    """Command-line options of a layout: fields that differ from their default, and those in `also`."""
    words = []
    for name, field in LAYOUT.items():
        value = getattr(layout, name)
        if value is None or (value == field.default and name not in also):
            continue
        words += [field.option] if value is True else [field.option, _text(value)]
    return words


def open_layout(path: str) -> LayoutFile:
    """The settings of a file or of standard input; DataError where no framework's format is recognised."""
    where = "standard input" if path == STDIN else f"layout file {shown_path(path)}"
    content = read_small_input(path, where=where, most_bytes=_MOST_BYTES)
    from kernelcast.runtime.frameworks.layout_files import read_layout_text

    def named(name: str) -> str:
        file = Path(path).parent / name
        return read_small_file(file, where=f"file {shown_path(str(file))}", most_bytes=_MOST_BYTES).decode(
            errors="replace"
        )

    return read_layout_text(content.decode(errors="replace"), where, None if path == STDIN else named)


def model_of(
    name: str | None, layout: str | None, sequence_length: int | None
) -> tuple[FoundModel, LayoutFile | None]:
    """The model and the layout's file; the sequence length comes from the option, else from that file, and so does a
    model without a name. UsageError or DataError where one is unknown or cannot be read.
    """
    file = None if layout is None else open_layout(layout)
    if file is not None:
        sequence_length = sequence_length or file.sequence_length()
        name = name or file.model_name
    if name is None and file is None:
        raise UsageError(
            "--model is not given, expected a model, or --layout with a file that names or describes one"
        )
    if name is None:
        assert file is not None
        found = FoundModel(model=file.model()).with_length(sequence_length)
    else:
        found = find_model(name, sequence_length=sequence_length)
    print_notes(found)
    return found, file


def read_fields(
    layout: LayoutFile, model: ModelConfig, given: dict[str, Any], devices: int | None
) -> tuple[dict[str, Any], tuple[Source, ...]]:
    """The fields given by a file and by options, and where the file has them; what was not read is on standard error.

    Errors as `LayoutFile.request`.
    """
    fields, notes, sources = layout.request(model, given, devices)
    if notes and not is_quiet():
        click.echo(f"warning: {layout.where}: {'; '.join(notes)}", err=True)
    if layout.unread and not is_quiet():
        click.echo(f"{layout.where}: not read ({len(layout.unread)}): {', '.join(layout.unread)}", err=True)
    return fields, sources


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def render_sources(sources: Sequence[Source], where: str) -> str:
    """A table of the settings that were read, in the file's order: line, setting, and the field with its value."""
    rows = [
        ("" if one.line is None else str(one.line), one.setting, one.field, _text(one.value))
        for one in sorted(sources, key=lambda one: one.line or 0)
    ]
    return title(f"Read from {where}", text_table(("line", "setting", "field", "value"), rows, indent="  "))
