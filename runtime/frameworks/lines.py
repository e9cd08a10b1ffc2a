"""Which line of a text has a setting: a flag of a script, or a dotted name whose parts stand one below the other."""

import re

_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_OF_SLURM = re.compile(r"^#SBATCH\b.*(?:nodes|gpus|gres|ntasks|-[NGn])", re.MULTILINE)


def line_of(key: str, text: str) -> int | None:
    """The line of a setting, from 1; None where it stands nowhere: a default, or what a variable holds.

    Of a flag that is given twice the last one counts, as in argparse. `WORLD_SIZE` may follow from `#SBATCH` lines.
    """
    code = _COMMENT.sub(lambda match: " " * len(match[0]), text)
    dashed = re.escape(key.lstrip("-")).replace(r"\-", "[-_]")
    flags = re.compile(rf"(?<![\w.-])(?:--)?{dashed}(?![\w.-])(?=[\s=:\"'\\])")
    places = [match.start() for match in flags.finditer(code)]
    if places:
        return _line(text, places[-1])
    if key == "WORLD_SIZE":
        found = _OF_SLURM.search(text)
        return None if found is None else _line(text, found.start())
    place = 0
    for part in key.split("."):
        name = re.compile(rf"(?<![\w-]){re.escape(part)}(?![\w-])").search(code, place)
        if name is None:
            return None
        place = name.end()
    return _line(text, place - 1) if "." in key else None


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1
