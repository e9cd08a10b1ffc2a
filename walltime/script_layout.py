"""The layout of a batch script that has no `#KERNELCAST` lines for it: what its own launch line says.

Flags of Megatron-LM, options of torchtitan and the like are read as `predict --layout` reads them; nothing is run.
"""

from typing import NamedTuple

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.frameworks.layout_files import read_layout_text
from kernelcast.runtime.frameworks.lines import line_of
from kernelcast.runtime.request.fields import REQUEST
from kernelcast.runtime.request.models import FoundModel
from kernelcast.walltime.fields import FIELDS
from kernelcast.walltime.settings import Given, Settings

_MOST_CHARACTERS = 1 << 18


class ScriptLayout(NamedTuple):
    """Fields that a script's launch line gives, with their lines, its model where it describes one, and notes."""

    given: dict[str, Given]
    model: FoundModel | None
    notes: tuple[str, ...]
    framework: str


def script_layout(text: str, name: str, settings: Settings, model: FoundModel | None) -> ScriptLayout | None:
    """What the script says beyond `settings`, which go first; None where it starts no framework that is known.

    `model` is the one that settings name, None where they name none and the script has to describe it.

    Raises:
        UsageError: a flag is wrong, or something is missing; names the script, and the line where there is one.
    """
    try:
        file = read_layout_text(text[:_MOST_CHARACTERS], name)
    except DataError:
        return None
    length = settings.whole("sequence_length") or file.sequence_length()
    found = model or FoundModel(model=file.model())
    of_request = {key: one.value for key, one in settings.given.items() if key in REQUEST}
    found = found.with_length(length)
    fields, notes, sources = file.request(found.model, of_request)
    lines = {one.field: one.line for one in reversed(sources)}
    values = {"framework": file.name, **fields}
    if not {"steps", "tokens"} & settings.given.keys() and (steps := file.steps()) is not None:
        values["steps"], lines["steps"] = steps, line_of(file.framework.steps, text)
    title = file.framework.title
    given = {
        key: Given(
            value=value, origin=f"{name} line {line}" if (line := lines.get(key)) else f"{name}, as {title}"
        )
        for key, value in values.items()
        if key not in settings and (lines.get(key) or value != FIELDS[key].default)
    }
    left = [
        one for one in file.unread if "steps" not in values or one.partition(" ")[0] != file.framework.steps
    ]
    unread = (f"{name}: not read: {', '.join(left)}",) if left else ()
    said = tuple(f"{name}: {note}" for note in notes)
    return ScriptLayout(given, None if model else found, (*said, *unread), file.name)
