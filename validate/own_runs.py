"""A site's own measured steps: runs files kept in a folder, which `validate steps` and the scoreboard read too."""

import os
from dataclasses import dataclass
from pathlib import Path

from kernelcast.runtime import UsageError
from kernelcast.runtime.errors import shown, shown_path, system_errors
from kernelcast.runtime.output_file import write_bytes
from kernelcast.validate.runs import RunsFile
from kernelcast.validate.steps import ScoredFile, score_steps, shipped_runs

FOLDER_VARIABLE = "KERNELCAST_RUNS"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedRuns:
    """A runs file that was added, and its scored steps; `is_new` is False where the same file exists already."""

    path: Path
    is_new: bool
    scored: ScoredFile


def own_folder() -> Path:
    """Where added files lie: `$KERNELCAST_RUNS`, else kernelcast/runs in the user's folder of data (XDG)."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "kernelcast" / "runs"


def own_runs() -> tuple[Path, ...]:
    """The files that were added, by name."""
    return tuple(sorted(own_folder().glob("*.toml")))


def add_runs(path: Path, *, replace: bool = False) -> AddedRuns:
    """Check a runs file, predict its steps, and copy it into `own_folder()`; errors as `RunsFile.read`.

    UsageError too where it names no device that predicts it, or a model's file, which a copy would miss; where a
    shipped file or, unless `replace`, another added one has its name; and if none of its steps can be predicted.
    """
    file, where = RunsFile.read(path), f"runs file {shown_path(path)}"
    if path.suffix != ".toml":
        raise UsageError(f"{where}: expected a name that ends in .toml")
    if path.name in {one.name for one in shipped_runs()}:
        raise UsageError(f"{where}: steps of this name ship, expected another name")
    if file.model_files:
        raise UsageError(
            f"{where}: model {shown(file.model_files[0])} is a file, expected its fields as [models.NAME] in the runs "
            "file, which is copied alone"
        )
    is_file = "/" in file.fabric or file.fabric.endswith((".toml", ".kcast"))
    if is_file and not Path(file.fabric).is_absolute():
        raise UsageError(
            f"{where}: fabric is {shown(file.fabric)}, expected a name or a path from the root: the file is copied"
        )
    [scored] = score_steps([path])
    if all(step.estimate is None for step in scored.steps):
        raise UsageError(f"{where}: no step can be predicted ({scored.steps[0].reason})")
    target = own_folder() / path.name
    is_new = not target.exists() or RunsFile.read(target).digest != file.digest
    if is_new and target.exists() and not replace:
        raise UsageError(
            f"{where}: {shown_path(target)} holds other steps, expected another name, or --replace"
        )
    if is_new:
        with system_errors(shown_path(target), "cannot be written"):
            target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, path.read_bytes(), shown_path(target))
    return AddedRuns(path=target, is_new=is_new, scored=scored)


def known_runs() -> tuple[Path, ...]:
    """Files that ship, then those that were added."""
    return (*shipped_runs(), *own_runs())
