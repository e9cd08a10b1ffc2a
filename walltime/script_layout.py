"""The layout of a batch script that has no `#KERNELCAST` lines for it: what its own launch line says.

Flags of Megatron-LM, options of torchtitan and the like are read as `predict --layout` reads them; nothing is run.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.frameworks.layout_files import line_of, read_layout_text
from kernelcast.runtime.request.fields import REQUEST
from kernelcast.runtime.request.model import FoundModel
from kernelcast.runtime.small_file import read_small_file
from kernelcast.walltime.fields import FIELDS, Given, Settings, merge

_MOST = 1 << 18


class ScriptLayout(NamedTuple):
    """Fields that a script's launch line gives, with their lines, its model where it describes one, and notes."""

    given: dict[str, Given]
    model: FoundModel | None
    notes: tuple[str, ...]
    framework: str | None


def script_layout(
    text: str,
    name: str,
    settings: Settings,
    find_model: Callable[[Settings], FoundModel],
    folder: Path | None,
) -> ScriptLayout | None:
    """What the script says beyond `settings`, which go first; None where it starts no framework that is known.

    The model is the one that settings name, or the script, else its flags describe it. Files that it names are read in
    `folder`, without one they are not.

    Raises:
        UsageError, DataError: a flag is wrong, or something is missing; names the script, and the line where known.
    """
    try:
        file = read_layout_text(text[:_MOST], name, None if folder is None else partial(_named, folder))
    except DataError:
        return None
    model_given = dict[str, Given]()
    if "model" not in settings and file.model_name is not None:
        model_given["model"] = Given(
            value=file.model_name, origin=_place(name, line_of(file.model_key, text))
        )
        settings = merge(settings.given, model_given)
    found = find_model(settings) if "model" in settings else FoundModel(model=file.model())
    length = settings.whole("sequence_length") or file.sequence_length()
    of_request = {key: one.value for key, one in settings.given.items() if key in REQUEST}
    found = found.with_length(length)
    fields, notes, sources = file.request(found.model, of_request)
    lines = {one.field: one.line for one in reversed(sources)}
    values = fields if file.name is None else {"framework": file.name, **fields}
    trained = None if {"steps", "tokens", "samples"} & settings.given.keys() else file.trained()
    if trained is not None:
        field, count, key = trained
        values[field], lines[field] = count, line_of(key, text)
    title = file.framework.title
    given = {
        key: Given(value=value, origin=_place(name, lines.get(key), title))
        for key, value in values.items()
        if lines.get(key) or value != FIELDS[key].default
    }
    left = [
        text
        for key, text in zip(file.unread_keys, file.unread, strict=True)
        if trained is None or key != trained[2]
    ]
    unread = (f"{name}: not read ({len(left)}): {', '.join(left)}",) if left else ()
    said = tuple(f"{name}: {note}" for note in notes)
    described = None if "model" in settings else found
    return ScriptLayout(model_given | given, described, (*said, *unread), file.name)


def _place(name: str, line: int | None, title: str = "") -> str:
    return f"{name}, as {title}" if line is None else f"{name} line {line}"


def _named(folder: Path, path: str) -> str:
    file = folder / path
    return read_small_file(file, where=f"file {file}", most_bytes=_MOST).decode(errors="replace")
