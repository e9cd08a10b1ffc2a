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
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

from kernelcast.runtime.bundle.manifest import FORMAT, STATISTICS, Key, Manifest, RegressorEntry, model_file
from kernelcast.runtime.dataclass import dataclass, field, replace
from kernelcast.runtime.errors import DataError, UsageError, error_context
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
    """A verified bundle, wholly in memory; no file stays open.

    `digest` is the SHA-256 of the file; `models` maps operator and direction to ONNX bytes, `entries` to what
    the manifest has about them: those measured alone, or with the fewest other processes. `at` gives the others;
    `files` are the ONNX bytes of all of them by their names.
    """

    path: Path
    digest: str
    manifest: Manifest
    models: Mapping[Key, bytes] = field(repr=False)
    entries: Mapping[Key, RegressorEntry] = field(repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def levels(self) -> tuple[int, ...]:
        """Numbers of processes per node with which its operators were measured, rising; collectives have none."""
        alone = (entry for entry in self.manifest.regressors if not OPERATORS[entry.operator].is_collective)
        return tuple(sorted({entry.processes_per_node for entry in alone}))

    def at(self, processes: int) -> "Bundle":
        """The same bundle, each operator answered by the regressor of the level that is nearest to `processes`."""
        entries = entries_at(self.manifest, processes)
        if entries == self.entries:
            return self
        models = {key: self.files[entry.file] for key, entry in entries.items()}
        return replace(self, entries=MappingProxyType(entries), models=MappingProxyType(models))


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


def read_bundle(path: str | os.PathLike[str], *, verified: Collection[str] = ()) -> Bundle:
    """Read a bundle and verify all of it: every byte of the file is accounted for.

    A file whose SHA-256 is in `verified` was verified before: its content is not written again to compare the bytes.

    Raises:
        DataError: the file is missing, cut, damaged, larger than 128 MiB, of an unknown format version, or does
            not hold exactly what its manifest says; the message names the file and the member.
    """
    source = Path(path)
    return verified_bundle(source, read_content(source), verified=verified)


def verified_bundle(source: Path, content: bytes, *, verified: Collection[str] = ()) -> Bundle:
    """The bundle whose bytes these are, every one accounted for; errors as in `read_bundle`."""
    with error_context(kind=DataError):
        return _verified(source, content, verified)


def _verified(source: Path, content: bytes, verified: Collection[str]) -> Bundle:
    digest = sha256(content).hexdigest()
    members = _members(source, content)
    if MANIFEST_FILE not in members:
        raise DataError(f"bundle {source}: no {MANIFEST_FILE} inside")
    manifest = _manifest(source, members.pop(MANIFEST_FILE))
    if digest not in verified and _serialise(source, manifest, members) != content:
        raise DataError(
            f"bundle {source}: its bytes differ from what kernelcast writes for its content (damaged?)"
        )
    entries = entries_at(manifest, 1)
    return Bundle(
        path=source,
        digest=digest,
        manifest=manifest,
        models=MappingProxyType({key: members[entry.file] for key, entry in entries.items()}),
        entries=MappingProxyType(entries),
        files=MappingProxyType(members),
    )


def _serialise(target: Path, manifest: Manifest, models: Mapping[str, bytes]) -> bytes:
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
    try:
        with open_regular(source) as stream:
            content = stream.read(MAX_BUNDLE_BYTES + MAX_MANIFEST_BYTES + 1)
    except FileNotFoundError as error:
        raise DataError(f"bundle {source}: no such file") from error
    except OSError as error:
        raise DataError(f"bundle {source}: cannot be read ({error.strerror})") from error
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
