"""A job's description from its sources: options, a batch script, `kernelcast.toml`, the site's file.

Earlier sources take precedence. Of a batch script its head is read: `#KERNELCAST` and `#SBATCH` lines.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError, shown, system_errors
from kernelcast.runtime.frameworks.slurm import sbatch_options
from kernelcast.runtime.small_file import open_regular, read_toml
from kernelcast.walltime.fields import FIELDS, Given, Settings, give, is_path, merge

MARK = "#KERNELCAST"
MAX_HEAD_BYTES = 1 << 20
_LIKE_MARK = re.compile(r"# ?KERNELCAST\s+(?:off\b|\w+=)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScript:
    """The fields in the comments before a script's first command.

    `off` after `#KERNELCAST off`: the user wants no prediction. `slurm_options` are those that decide how many
    nodes and GPUs the job gets, by their long names.
    """

    given: Mapping[str, Given]
    slurm_options: Mapping[str, str]
    off: bool
    warnings: tuple[str, ...]
    text: str = ""
    name: str = ""

    @classmethod
    def parse(cls, text: str, *, name: str, folder: Path) -> Self:
        """Read the comments of a script; `name` is for messages, relative paths are relative to `folder`.

        UsageError, with script and line, for a `#KERNELCAST` line that is malformed, or gives a field twice.
        """
        given: dict[str, Given] = {}
        slurm_options: dict[str, str] = {}
        warnings: list[str] = []
        off = False
        for number, line, is_head in _comments(text):
            words = line.split(maxsplit=1)
            where = f"{name} line {number}"
            if words[0] == "#SBATCH" and is_head:
                slurm_options |= sbatch_options(line)
            if words[0] != MARK:
                if _LIKE_MARK.match(line):
                    warnings.append(f"{where}: {shown(line)} is not read, expected {MARK} in upper case")
                continue
            if not is_head:
                warnings.append(f"{where}: {MARK} after the first command is not read (as with #SBATCH)")
                continue
            for word in _words(line, where):
                if word == "off":
                    off = True
                    continue
                key, equals, value = word.partition("=")
                if not equals:
                    raise UsageError(f"{where}: found {shown(word)}, expected field=value or off")
                given = give([(key, value)], origin=where, folder=folder, earlier=given)
        return cls(
            given=MappingProxyType(given),
            slurm_options=MappingProxyType(slurm_options),
            off=off,
            warnings=tuple(warnings),
            text=text,
            name=name,
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the script at `path`, to which its relative paths are relative; DataError where it is unreadable."""
        refused = system_errors(f"batch script {path}", "cannot be read", missing="no such file")
        with refused, open_regular(path) as stream:
            content = stream.read(MAX_HEAD_BYTES)
        return cls.parse(decoded(content), name=str(path), folder=path.absolute().parent)


def decoded(content: bytes) -> str:
    """A script's text; bytes that are not UTF-8 are preserved, since file names may hold any bytes."""
    return content.decode("utf-8", errors="surrogateescape")


def _comments(text: str) -> Iterator[tuple[int, str, bool]]:
    """Lines that begin with #: line number, line, and whether it precedes the first command."""
    is_head = True
    # Not splitlines(), for which a form feed or U+2028 inside a comment would begin a new line.
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if line.startswith("#"):
            yield number, stripped, is_head
        elif stripped and not stripped.startswith("#"):
            is_head = False


def _words(line: str, where: str) -> list[str]:
    try:
        return shlex.split(line[len(MARK) :], comments=True)
    except ValueError as error:
        raise UsageError(f"{where}: {str(error).lower()} in {shown(line)}, expected field=value …") from error


JOB_FILE = "kernelcast.toml"
SITE_FILE = Path("/etc/kernelcast/site.toml")
SITE_VARIABLE = "KERNELCAST_SITE"

# Fields that name a file; in scripts of other users only the site may choose files.
_NAMES_A_FILE = ("bundle", "model", "fabric", "stack")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job: its settings, its Slurm options (long names), notes for its user, and its script.

    `folder` has the files that the script's launch line names; without one they are not read.

    `off`: the user wants no prediction for it.
    """

    settings: Settings
    slurm_options: Mapping[str, str]
    off: bool
    warnings: tuple[str, ...]
    script: BatchScript | None = None
    folder: Path | None = None


def find_job(
    target: Path | None, *, options: Mapping[str, Any] | None = None, environment: Mapping[str, str]
) -> Job:
    """The job that `target` describes.

    `target` is a batch script (`kernelcast.toml` in its folder is read too), a `.toml` job file, or a folder with a
    `kernelcast.toml`; without one, `kernelcast.toml` in the working folder is read if it exists. `options` are fields
    from a command line, None where not given.

    Raises:
        DataError: a file is missing, unreadable or not TOML.
        UsageError: a field is unknown, given twice, or has a wrong value; names file, line or field, what was
            found and what is allowed.
    """
    if target is None:
        return _job(options, None, _in_folder(Path()), environment)
    if target.suffix == ".toml" or target.is_dir():
        in_file = _read_toml(target if target.suffix == ".toml" else target / JOB_FILE)
        return _job(options, None, in_file, environment)
    return _job(options, BatchScript.read(target), _in_folder(target.parent), environment, target.parent)


def script_job(
    text: str,
    *,
    name: str,
    folder: Path | None,
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str],
) -> Job:
    """The job of a batch script given as text; errors as in `find_job`.

    Relative paths start from `folder`, and its `kernelcast.toml` is read. Without a folder the script is untrusted:
    it may name models and fabrics (built-in ones and the site's), but neither bundles nor paths, and no
    `kernelcast.toml` is read.
    """
    script = BatchScript.parse(text, name=name, folder=folder or Path("/"))
    if folder is not None:
        return _job(options, script, _in_folder(folder), environment, folder)
    for field in _NAMES_A_FILE:
        given = script.given.get(field)
        if given is not None and (field == "bundle" or is_path(str(given.value), field)):
            allowed = "none (the site chooses it)" if field == "bundle" else f"a {field}'s name, not a path"
            raise UsageError(field=field, found=given.value, expected=allowed).within(given.origin)
    return _job(options, script, {}, environment)


def annotated_job(
    given: Mapping[str, Given],
    *,
    folder: Path,
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str],
) -> Job:
    """The job described by fields from outside a script, completed by `kernelcast.toml` in `folder`; errors as in
    `find_job`.
    """
    script = BatchScript(given=given, slurm_options=MappingProxyType({}), off=False, warnings=())
    return _job(options, script, _in_folder(folder), environment)


def _job(
    options: Mapping[str, Any] | None,
    script: BatchScript | None,
    in_file: Mapping[str, Given],
    environment: Mapping[str, str],
    folder: Path | None = None,
) -> Job:
    by_option: dict[str, Given] = {}
    for name, value in (options or {}).items():
        if value is not None:
            by_option |= give([(name, value)], origin=FIELDS[name].option, folder=Path.cwd(), home=True)
    by_script = script.given if script else {}
    return Job(
        settings=merge(by_option, by_script, in_file, read_site(environment)),
        slurm_options=script.slurm_options if script else MappingProxyType({}),
        off=script is not None and script.off,
        warnings=script.warnings if script else (),
        script=script,
        folder=folder,
    )


def read_site(environment: Mapping[str, str]) -> dict[str, Given]:
    """The fields of the site's file: named by the environment (an empty name: no file), else the default, if there."""
    named = environment.get(SITE_VARIABLE)
    if named is not None:
        return _read_toml(Path(named), site=True) if named else {}
    return _read_toml(SITE_FILE, site=True) if SITE_FILE.exists() else {}


def _in_folder(folder: Path) -> dict[str, Given]:
    """The fields of a folder's job file; empty without a file."""
    job_file = folder / JOB_FILE
    return _read_toml(job_file) if job_file.exists() else {}


def _read_toml(path: Path, *, site: bool = False) -> dict[str, Given]:
    what = "site file" if site else "job file"
    document = read_toml(path, where=f"{what} {path}")
    return give(
        document.items(), origin=f"{what} {path}", folder=path.absolute().parent, site=site, home=True
    )
