"""The sources of a user, `kernelcast/commons.toml` in the folder of configurations, and what is kept of each.

Of every source its last index with the signature, and the digests of the databases that were pulled from it:
`kernelcast/commons/NAME/`. Unfinished transfers are in the cache, where they may be deleted.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import DataError, UsageError, either, error_context, system_errors
from kernelcast.runtime.output_file import write_pieces
from kernelcast.runtime.record import ONE_LINE, WITH_DEFAULT, Check, Record
from kernelcast.runtime.small_file import NoSuchFile, read_small_file, read_toml, toml_document
from kernelcast.store.commons.index import INDEX_FILE, MOST_INDEX_BYTES, Index, read_index

_NAME = Check(
    re.compile("[a-z0-9][a-z0-9._-]{0,63}").fullmatch, "a name of lower-case letters, digits, . _ -"
)
_SCHEMES = ("file", "http", "https")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Record):
    """A commons, and whom it is trusted to be by: without allowed signers anyone who can write there."""

    OPTIONAL: ClassVar[tuple[str, ...]] = WITH_DEFAULT
    name: Annotated[str, _NAME]
    address: Annotated[str, ONE_LINE]
    signer: str = ""  # of the allowed signers only this one
    allowed_signers: str = ""  # file
    other_hosts: bool = False  # whether redirects may lead to other hosts
    is_distrusted: bool = False  # nothing is taken from it any more

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        parts = urlsplit(self.address)
        self.require("address", parts.scheme in _SCHEMES, f"an address of {either(_SCHEMES)}, or a folder")
        is_whole = (
            parts.hostname if parts.scheme != "file" else parts.path.startswith("/") and not parts.netloc
        )
        self.require("address", is_whole and not parts.query and not parts.fragment, "an address of a folder")
        self.require("address", "@" not in parts.netloc, "an address without a user name")

    @property
    def trust(self) -> str:
        if self.is_distrusted:
            return "distrusted"
        if not self.allowed_signers:
            return "not signed"
        return f"signed by {self.signer}" if self.signer else f"signed by any of {self.allowed_signers}"

    @property
    def folder(self) -> Path:
        """What is kept of it."""
        return _folder("XDG_CONFIG_HOME", ".config") / "commons" / self.name

    @property
    def cache(self) -> Path:
        """Unfinished transfers."""
        return _folder("XDG_CACHE_HOME", ".cache") / "commons" / self.name

    def index(self) -> Index | None:
        """The index that was fetched last; None before the first time, DataError where it cannot be read."""
        path = self.folder / INDEX_FILE
        try:
            content = read_small_file(path, where=str(path), most_bytes=MOST_INDEX_BYTES)
        except NoSuchFile:
            return None
        return read_index(content, str(path))

    def forget(self) -> None:
        for folder in (self.folder, self.cache):
            shutil.rmtree(folder, ignore_errors=True)

    def pulled(self) -> set[str]:
        """SHA-256 of every database that was ever pulled from it."""
        try:
            return set((self.folder / "pulled").read_text().split())
        except FileNotFoundError:
            return set()

    def remember_pulled(self, digests: set[str]) -> None:
        """Add to `pulled`, in the caller's lock."""
        if not digests <= (known := self.pulled()):
            write_pieces(self.folder / "pulled", (f"{one}\n" for one in sorted(known | digests)))


def default_allowed_signers() -> Path:
    """The list of signers that a source is verified against where it names no other."""
    return _folder("XDG_CONFIG_HOME", ".config") / "allowed_signers"


def read_sources() -> list[Source]:
    """All sources, in the order in which they were added; DataError where `write_sources` did not write the file."""
    path = _sources_file()
    try:
        values = read_toml(path, where=str(path))
    except NoSuchFile:
        return []
    with error_context(str(path)):
        return list(_Sources.from_dict(values).source)


def chosen_sources(names: tuple[str, ...]) -> list[Source]:
    """The named sources, or all that are not distrusted; UsageError without any, or for any other name."""
    known = {one.name: one for one in read_sources()}
    if not known:
        raise UsageError(f"{_sources_file()} names no source, expected one (kernelcast commons add)")
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"source {unknown[0]!r:.80} is unknown, expected {either(known)}")
    for name in names:
        if known[name].is_distrusted:
            raise UsageError(
                f"source {name} is distrusted, expected another (commons remove, then add, trusts it)"
            )
    return (
        [known[name] for name in names] if names else [one for one in known.values() if not one.is_distrusted]
    )


def write_sources(sources: list[Source]) -> None:
    """Replace the list of sources; DataError where it cannot be written."""
    path = _sources_file()
    with made(path.parent):
        write_pieces(path, [toml_document({"source": [one.to_dict() for one in sources]})])


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """Make a folder of the user's own for the block; DataError where the file system fails, also in the block."""
    with system_errors(str(folder), "cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources(Record):
    OPTIONAL: ClassVar[tuple[str, ...]] = WITH_DEFAULT
    source: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        names = [one.name for one in self.source]
        if len(names) != len(set(names)):
            raise DataError(field="source", found=names, expected="names that differ")


def _sources_file() -> Path:
    return _folder("XDG_CONFIG_HOME", ".config") / "commons.toml"


def _folder(variable: str, default: str) -> Path:
    # As the XDG Base Directory Specification has it: what is not absolute is ignored.
    stated = os.environ.get(variable, "")
    return (Path(stated) if os.path.isabs(stated) else Path.home() / default) / "kernelcast"
