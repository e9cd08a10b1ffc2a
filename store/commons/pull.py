"""Pulling from a commons: only parts that a database lacks, and nothing of a stranger's opened before it is verified.

The index is verified by its signature, every part by the digest in the index; only then is it opened as a database, by
the way that every stranger's database takes. All parts of a source are merged in one transaction.
"""

import fcntl
import lzma
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from kernelcast.runtime.bundle.signature import SIGNATURE_BEGINS, Verified, signature_path, verify_signed_file
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import DataError, error_context, shown_size
from kernelcast.runtime.output_file import write_bytes, write_companion
from kernelcast.store.commons.index import INDEX_FILE, MOST_INDEX_BYTES, NAMESPACE, Index, Part, read_index
from kernelcast.store.commons.sources import Source, made
from kernelcast.store.commons.transfer import Missing, Transfer
from kernelcast.store.connection import connect
from kernelcast.store.copying import merge_databases
from kernelcast.store.database_file import DEFAULT_MAX_SIZE_BYTES, check_file
from kernelcast.store.sqlite_errors import reported

_MOST_SIGNATURE_BYTES = 1 << 16
_UNPACK_BYTES = 1 << 27  # memory that a stranger's xz may ask for
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """What was pulled from a source."""

    source: Source
    index: Index
    signer: str  # empty: not signed
    parts: tuple[Part, ...]
    rows: Counter[str]  # added, by table
    requests: int
    received_bytes: int


def refresh(source: Source) -> tuple[Index, Verified | None]:
    """Fetch and verify the index of a source; the one before stays where it is the same, or the new one is refused.

    Raises:
        DataError: it cannot be fetched, is not an index, is of a newer format, is older than the one before; or is not
            signed by whom the source is trusted to be.
    """
    with made(source.folder), _alone(source):
        return _refresh(source, Transfer(source=source))


def _refresh(source: Source, transfer: Transfer) -> tuple[Index, Verified | None]:
    path, before = source.folder / INDEX_FILE, source.index()
    content = transfer.read(INDEX_FILE, MOST_INDEX_BYTES)
    where = f"source {source.name}: {source.address}"
    if (
        before is not None
        and content == path.read_bytes()
        and (not source.allowed_signers or signature_path(path).exists())
    ):
        return before, _verified(source, path)
    with TemporaryDirectory(prefix="kernelcast-") as folder:
        new = Path(folder, INDEX_FILE)
        new.write_bytes(content)
        verified, signature = None, b""
        if source.allowed_signers:
            try:
                signature = transfer.read(signature_path(INDEX_FILE).name, _MOST_SIGNATURE_BYTES)
            except Missing as error:
                raise DataError(f"{where}: is not signed, expected a signature ({source.trust})") from error
            signature_path(new).write_bytes(signature)
            with error_context(where):
                verified = _verified(source, new)
        index = read_index(content, f"{where}/{INDEX_FILE}")
        if before is not None and index.published_at < before.published_at:
            raise DataError(
                f"{where}: was published at {index.published_at}, before the index of {before.published_at} that was "
                "fetched earlier (commons remove forgets it)"
            )
        if signature:
            write_companion(
                signature_path(path), signature, str(signature_path(path)), begins=SIGNATURE_BEGINS
            )
        write_bytes(path, content, str(path))
    return index, verified


def pull(
    source: Source,
    into: Path,
    words: Sequence[str] = (),
    *,
    max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES,
    transfer: Transfer | None = None,
) -> Pulled:
    """Merge the parts of a source that match every word and that a database lacks; it is created if it is missing.

    Raises:
        DataError: as `refresh`; a part is missing, has another digest or size, or is no sound database; there is no
            space for them, or they exceed `max_size_bytes`. Nothing is merged then; what was fetched is kept.
    """
    transfer = transfer or Transfer(source=source)
    with made(source.folder), made(source.cache), _alone(source), error_context(f"source {source.name}"):
        index, verified = _refresh(source, transfer)
        signer = "" if verified is None else verified.signer
        have = merged_digests(into)
        parts = [part for part in index.matching(tuple(words)) if part.database_digest not in have]
        rows = Counter[str]()
        if parts:
            _check_space(parts, source, into, max_size_bytes)
            fetched = [source.cache / f"{part.digest}.xz" for part in parts]
            for part, path in zip(parts, fetched, strict=True):
                transfer.download(part.path, path, size_bytes=part.size_bytes, digest=part.digest)
            with TemporaryDirectory(prefix="unpacked-", dir=source.cache) as folder:
                unpacked = {
                    _unpack(part, path, Path(folder)): Verified(
                        signer=signer,
                        key=verified.key if verified else "",
                        bundle_digest=part.database_digest,
                    )
                    for part, path in zip(parts, fetched, strict=True)
                }
                merged = merge_databases(
                    list(unpacked), into, max_size_bytes=max_size_bytes, verified=unpacked
                )
            rows = sum((added for _, added in merged.added), Counter[str]())
            source.remember_pulled({part.database_digest for part in parts})
            for path in fetched:
                path.unlink()
    return Pulled(
        source=source,
        index=index,
        signer=signer,
        parts=tuple(parts),
        rows=+rows,
        requests=transfer.requests,
        received_bytes=transfer.received_bytes,
    )


def _verified(source: Source, path: Path) -> Verified | None:
    if not source.allowed_signers:
        return None
    allowed = Path(source.allowed_signers)
    return verify_signed_file(path, allowed, signer=source.signer, namespace=NAMESPACE)


@contextmanager
def _alone(source: Source) -> Iterator[None]:
    """Keep other processes from the same source for the block."""
    with (source.folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(f"source {source.name}: another process is pulling from it") from error
        yield


def merged_digests(into: Path) -> set[str]:
    """SHA-256 of every file that was merged into a database."""
    if not into.exists():
        return set()
    check_file(into)
    with reported(into), closing(connect(into, read_only=False)) as connection:  # migrated if it is older
        return {digest for (digest,) in connection.execute("SELECT file_digest FROM merge")}


def _check_space(parts: Sequence[Part], source: Source, into: Path, max_size_bytes: int) -> None:
    packed, unpacked = sum(part.size_bytes for part in parts), sum(part.database_bytes for part in parts)
    if unpacked > max_size_bytes:
        raise DataError(
            f"the parts have {shown_size(unpacked)}, the limit is {shown_size(max_size_bytes)}; nothing was merged"
            " (raise --max-size, or select parts with WORD)"
        )
    needed: dict[Path, int] = {source.cache: packed + unpacked, into.absolute().parent: unpacked}
    by_device: dict[int, tuple[Path, int]] = {}
    for folder, size_bytes in needed.items():
        if not folder.is_dir():
            raise DataError(f"{into}: its folder does not exist")
        device = folder.stat().st_dev
        by_device[device] = (folder, size_bytes + by_device.get(device, (folder, 0))[1])
    for folder, size_bytes in by_device.values():
        free = shutil.disk_usage(folder).free
        if free < size_bytes:
            raise DataError(
                f"no space: {folder} has {shown_size(free)} free, the parts need {shown_size(size_bytes)};"
                " nothing was merged"
            )


def _unpack(part: Part, packed: Path, folder: Path) -> Path:
    """Unpack a verified part, no more than the index states, and verify the database's digest too."""
    path, digest, size_bytes = folder / f"{part.database_digest}.db", sha256(), 0
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_UNPACK_BYTES)
    with packed.open("rb") as source, path.open("xb") as target:
        try:
            while not unpacker.eof:
                block = source.read(_BLOCK_BYTES) if unpacker.needs_input else b""
                if unpacker.needs_input and not block:
                    raise DataError(f"part {part.path}: ends early; nothing was merged")
                piece = unpacker.decompress(block, max_length=_BLOCK_BYTES)
                size_bytes += len(piece)
                if size_bytes > part.database_bytes:
                    raise DataError(f"part {part.path}: unpacks to more than {part.database_bytes:,} bytes")
                digest.update(piece)
                target.write(piece)
        except (lzma.LZMAError, EOFError) as error:
            raise DataError(f"part {part.path}: is not xz ({error}); nothing was merged") from error
    if digest.hexdigest() != part.database_digest:
        raise DataError(
            f"part {part.path}: unpacks to another database than the index states; nothing was merged"
        )
    return path
