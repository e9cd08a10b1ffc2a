"""The bundle `NAME.kcast`: a zip of `manifest.json` and one ONNX model per regressor.

Standard library only. The zip is written record by record, so that the same manifest and models give the
same bytes with every Python version; reading requires exactly those bytes, so that no flipped byte and no cut
goes unnoticed.
"""

import json
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

from kernelcast.runtime.bundle.manifest import FORMAT, STATISTICS, Key, Manifest, RegressorEntry, model_file
from kernelcast.runtime.dataclass import dataclass, field, replace
from kernelcast.runtime.errors import DataError, UsageError, error_context, system_errors
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.small_file import open_regular

__all__ = [
    "FORMAT",
    "STATISTICS",
    "Bundle",
    "Key",
    "Manifest",
    "RegressorEntry",
    "model_file",
    "read_bundle",
    "write_bundle",
]

MANIFEST_FILE = "manifest.json"
MAX_BUNDLE_BYTES = 1 << 27  # forty times the largest that ships; loaded, trees take ten times their bytes
MAX_MANIFEST_BYTES = 1 << 24

# 1980-01-01 00:00, the earliest moment that a zip can say, in MS-DOS form: time 0, date 1 January of year 0.
_DOS_TIME, _DOS_DATE = 0, (1 << 5) | 1
_UNIX_FILE_0644 = 0o100644 << 16
_MEMBER = b"PK\x03\x04"
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A verified bundle; no file stays open.

    `digest` is the SHA-256 of the file. `entries` maps operator and direction to their regressors in the manifest:
    those measured alone, or with the fewest other processes; `at` gives the others. `files` are the ONNX bytes of all
    regressors by their names.
    """

    path: Path
    digest: str
    manifest: Manifest
    entries: Mapping[Key, RegressorEntry] = field(repr=False)
    files: Mapping[str, bytes] = field(repr=False)

    @property
    def levels(self) -> tuple[int, ...]:
        """Numbers of processes per node with which its operators were measured, rising; collectives have none."""
        alone = (entry for entry in self.manifest.regressors if not OPERATORS[entry.operator].is_collective)
        return tuple(sorted({entry.processes_per_node for entry in alone}))

    def at(self, processes: int) -> "Bundle":
        """The same bundle, each operator answered by the regressor of the level that is nearest to `processes`."""
        entries = entries_at(self.manifest, processes)
        return self if entries == self.entries else replace(self, entries=MappingProxyType(entries))

    def model(self, key: Key) -> bytes:
        """The ONNX bytes of the regressor that answers for an operator and direction."""
        return self.files[self.entries[key].file]


class UnreadFiles(Mapping[str, bytes]):
    """ONNX bytes by file name, each read on first use, by a function without arguments."""

    def __init__(self, readers: Mapping[str, Callable[[], bytes]]) -> None:
        self._readers = readers

    def __getitem__(self, name: str) -> bytes:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


def entries_at(manifest: Manifest, processes: int) -> dict[Key, RegressorEntry]:
    """Of every operator and direction the entry whose processes per node are nearest to `processes`."""
    levels: dict[Key, dict[int, RegressorEntry]] = {}
    for entry in manifest.regressors:
        levels.setdefault(entry.key, {})[entry.processes_per_node] = entry
    return {key: found[nearest_level(found, processes)] for key, found in levels.items()}


def nearest_level(levels: Iterable[int], processes: int) -> int:
    """The measured number of processes that is nearest to `processes`, as a ratio; of two as near the larger."""
    return min(levels, key=lambda level: (abs(math.log(level / processes)), -level))


def write_bundle(path: str | os.PathLike[str], manifest: Manifest, models: Mapping[str, bytes]) -> str:
    """Write a bundle: all of it, or nothing.

    `models` maps `RegressorEntry.file` to the bytes of the ONNX model. Returns the SHA-256 of the file. The
    same input gives the same bytes.

    Raises:
        UsageError: models and manifest do not belong together, or the bundle would be larger than 128 MiB.
        DataError: the file cannot be written.
    """
    target = Path(path)
    content = _serialise(target, manifest, models)
    from kernelcast.runtime.output_file import write_bytes

    write_bytes(target, content, f"bundle {target}")
    return sha256(content).hexdigest()


def bundle_content(bundle: Bundle) -> bytes:
    """The bytes of a bundle's file: those that were read, or of a bundle that was put together in memory."""
    return _serialise(bundle.path, bundle.manifest, bundle.files)


def read_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Read a bundle and verify all of it: every byte of the file is accounted for.

    Raises:
        DataError: the file is missing, cut, damaged, larger than 128 MiB, of an unknown format version, or does
            not hold exactly what its manifest says; the message names the file and the member.
    """
    source = Path(path)
    return verified_bundle(source, read_content(source))


def verified_bundle(source: Path, content: bytes) -> Bundle:
    """The bundle whose bytes these are, every one accounted for; errors as in `read_bundle`."""
    with error_context(kind=DataError):
        members = _members(source, content)
        if MANIFEST_FILE not in members:
            raise DataError(f"bundle {source}: no {MANIFEST_FILE} inside")
        manifest = _manifest(source, members.pop(MANIFEST_FILE))
        if _serialise(source, manifest, members) != content:
            raise DataError(
                f"bundle {source}: its bytes differ from what kernelcast writes for its content (damaged?)"
            )
    return bundle_of(source, sha256(content).hexdigest(), manifest, MappingProxyType(members))


def bundle_of(source: Path, digest: str, manifest: Manifest, files: Mapping[str, bytes]) -> Bundle:
    """A bundle of verified parts; of levels of concurrency, the times measured alone are used."""
    entries = MappingProxyType(entries_at(manifest, 1))
    return Bundle(path=source, digest=digest, manifest=manifest, entries=entries, files=files)


def open_shipped(source: Path, *, digest: str, manifest_digest: str) -> Bundle:
    """A bundle that ships with the package: a regressor is read on first use, and then verified by the manifest.

    Both digests are SHA-256: of the file, and of its manifest, which decides the file. A file with another manifest is
    read and verified whole, as `read_bundle` does.

    Raises:
        DataError: as in `read_bundle`; from `files`, a regressor differs from the manifest or cannot be read.
    """
    head = _bytes_at(source, 0, _LOCAL.size).ljust(_LOCAL.size)
    *_, size, _, name_size, _ = _LOCAL.unpack(head)
    position = _LOCAL.size + name_size
    text = _bytes_at(source, position, size)
    if sha256(text).hexdigest() != manifest_digest:
        return read_bundle(source)
    manifest = _manifest(source, text)
    position += size
    readers = dict[str, Callable[[], bytes]]()
    for entry in sorted(manifest.regressors, key=lambda one: one.file):
        position += _LOCAL.size + len(entry.file)
        readers[entry.file] = partial(_model, source, position, entry)
        position += entry.size_bytes
    return bundle_of(source, digest, manifest, UnreadFiles(readers))


def _model(source: Path, position: int, entry: RegressorEntry) -> bytes:
    model = _bytes_at(source, position, entry.size_bytes)
    if sha256(model).hexdigest() != entry.sha256:
        raise DataError(f"bundle {source}: {entry.file} differs from the manifest (damaged?)")
    return model


def _bytes_at(source: Path, position: int, size: int) -> bytes:
    """Bytes of a file from a position on; fewer where the file ends."""
    with system_errors(f"bundle {source}", "cannot be read"), source.open("rb") as stream:
        stream.seek(position)
        return stream.read(size)


def _serialise(target: Path, manifest: Manifest, models: Mapping[str, bytes]) -> bytes:
    models = dict(models)  # each read once
    expected = {entry.file: entry for entry in manifest.regressors}
    for name in sorted(models.keys() ^ expected.keys()):
        problem = "is not in the manifest" if name in models else "is in the manifest, but missing"
        raise UsageError(f"bundle {target}: {name} {problem}")
    for name, entry in expected.items():
        found = sha256(models[name]).hexdigest()
        if found != entry.sha256 or len(models[name]) != entry.size_bytes:
            raise UsageError(
                f"bundle {target}: {name} has {len(models[name])} bytes and SHA-256 {found[:12]}…, "
                f"the manifest says {entry.size_bytes} and {entry.sha256[:12]}…"
            )
    text = manifest.to_json()
    if len(text) > MAX_MANIFEST_BYTES or len(text) + sum(map(len, models.values())) > MAX_BUNDLE_BYTES:
        raise UsageError(f"bundle {target}: larger than a bundle may be ({MAX_BUNDLE_BYTES} bytes)")
    comment = f"{FORMAT} manifest sha256 {sha256(text).hexdigest()}".encode()
    return _zip_bytes([(MANIFEST_FILE, text), *sorted(models.items())], comment)


def _zip_bytes(members: list[tuple[str, bytes]], comment: bytes) -> bytes:
    """A zip (PKWARE APPNOTE 4.3) of stored members in the order given, without any variable field."""
    parts: list[
        bytes
    ] = []  # joined once: a copy of every model for each concatenation would be the peak of memory
    size, directory = 0, bytearray()
    for name, data in members:
        raw = name.encode("ascii")
        common = (20, 0, 0, _DOS_TIME, _DOS_DATE, zlib.crc32(data), len(data), len(data), len(raw), 0)
        # Made by version 2.0 on Unix (3), so that unpacking gives readable files.
        tail = (0, 0, 0, _UNIX_FILE_0644, size)
        directory += _CENTRAL.pack(b"PK\x01\x02", 0x0314, *common, *tail) + raw
        parts += (_LOCAL.pack(_MEMBER, *common), raw, data)
        size += sum(map(len, parts[-3:]))
    end = _END.pack(b"PK\x05\x06", 0, 0, len(members), len(members), len(directory), size, len(comment))
    return b"".join([*parts, directory, end, comment])


def read_content(source: Path) -> bytes:
    """All bytes of a bundle's file, unverified.

    Raises:
        DataError: the file is missing, cannot be read or is larger than a bundle may be.
    """
    refused = system_errors(f"bundle {source}", "cannot be read", missing="no such file")
    with refused, open_regular(source) as stream:
        content = stream.read(MAX_BUNDLE_BYTES + MAX_MANIFEST_BYTES + 1)
    if len(content) > MAX_BUNDLE_BYTES + MAX_MANIFEST_BYTES:
        raise DataError(f"bundle {source}: larger than a bundle may be ({MAX_BUNDLE_BYTES} bytes)")
    return content


def _members(source: Path, content: bytes) -> dict[str, bytes]:
    """Members by name up to the zip's directory, which is compared afterwards; compressed ones are refused unread."""
    if not content.startswith(_MEMBER):
        raise DataError(f"bundle {source}: not a bundle (expected a zip file, {len(content)} bytes found)")
    members, position = dict[str, bytes](), 0
    try:
        while content.startswith(_MEMBER, position):
            _, _, _, method, *_, size, _, name_size, extra_size = _LOCAL.unpack_from(content, position)
            name_end = position + _LOCAL.size + name_size
            name = content[position + _LOCAL.size : name_end].decode("ascii")
            if method or name in members:
                raise DataError(f"bundle {source}: {name[:80]!r} is compressed or there twice")
            begin, position = name_end + extra_size, name_end + extra_size + size
            if position > len(content):
                raise ValueError(f"{name[:80]!r} ends at byte {position} of {len(content)}")
            members[name] = content[begin:position]
    except (struct.error, ValueError) as error:
        raise DataError(f"bundle {source}: cut or damaged ({error})") from error
    return members


def _manifest(source: Path, text: bytes) -> Manifest:
    if len(text) > MAX_MANIFEST_BYTES:
        raise DataError(f"bundle {source}: {MANIFEST_FILE} is larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"bundle {source}: {MANIFEST_FILE} is not JSON ({error})") from error
    with error_context(f"bundle {source}"):
        return Manifest.from_dict(values)
