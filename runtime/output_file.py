"""The one way in which commands write files: all of it or nothing, and never in place of what is no regular file.

A regular file is written next to its target and renamed over it; it keeps its mode and owner. A link stays, and the
file that it leads to is replaced. Devices and pipes are written to directly; everything else is refused. Ctrl-C and
SIGTERM leave no unfinished file.
"""

import errno
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from kernelcast.runtime.errors import DataError, UsageError, error_context, one_line, system_errors
from kernelcast.runtime.terminations import terminations_interrupt

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFBLK: "a block device", stat.S_IFSOCK: "a socket"}


def check_target(path: Path, option: str) -> None:
    """Refuse, before any work, a file that cannot be written; `option` is the command-line option that named it.
    UsageError where its folder does not exist or may not be written, or it is nothing that can be written to.
    """
    shown = one_line(str(path))
    with error_context(f"{option} {shown}", kind=UsageError):
        target = _target(path)
    if target is None:
        return
    folder = target.parent
    named = one_line(str(folder if path.is_symlink() else path.parent))
    if not folder.is_dir():
        raise UsageError(f"{option} {shown}: no such folder {named}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {shown}: no permission to write in folder {named}")


def check_writable(path: Path, name: str) -> None:
    """Check that `write_bytes` can put a file there, before long work; DataError begins with `name`."""
    with system_errors(name, "cannot be written"), error_context(name):
        target = _target(path)
        if target is not None:
            with unfinished_beside(target) as unfinished:
                unfinished.touch(exist_ok=False)


def write_pieces(path: Path, pieces: Iterable[str]) -> None:
    """Write texts one after the other, as UTF-8; errors as in `write_bytes`."""
    _write(path, (piece.encode() for piece in pieces), one_line(str(path)))


def write_bytes(path: Path, content: bytes, name: str) -> None:
    """Write a file that appears under its name only when it is complete and on the disk. DataError where it cannot be
    written; an existing file stays. The message begins with `name`.
    """
    _write(path, [content], name)


def write_companion(path: Path, content: bytes, name: str, *, begins: bytes) -> None:
    """Write a file whose name follows from another's: no link is followed, only one of its kind is replaced.

    `begins` is how its kind begins. Errors as `write_bytes`, and where something else has its name.
    """
    with system_errors(name, "cannot be written"):
        if os.path.lexists(path):
            if path.is_symlink() or not path.is_file():
                raise DataError(f"{name}: is a link or no file, expected a regular file or none")
            with path.open("rb") as there:
                if there.read(len(begins)) != begins:
                    start = begins[:20].decode(errors="replace").partition("\n")[0]
                    raise DataError(f"{name}: is another file, expected one that begins with {start}")
        _replace(path, [content])


def _write(path: Path, pieces: Iterable[bytes], name: str) -> None:
    with system_errors(name, "cannot be written"), error_context(name):
        target = _target(path)
        if target is None:
            _write_through(path, pieces)
        else:
            _replace(target, pieces)


def _target(path: Path) -> Path | None:
    """The regular file that a path leads to, there or not yet; None for what is written as it is, else DataError."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be written ({getattr(error, 'strerror', None) or error})") from error
    if stat.S_ISREG(mode):
        # /dev/stdout leads to a file that is open already: it is written on, not replaced.
        return None if _open_already(path) is not None else Path(os.path.realpath(path))
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        return None
    raise DataError(f"is {_KINDS.get(stat.S_IFMT(mode), 'no file')}, expected a file")


def _open_already(path: Path) -> int | None:
    """The descriptor that a path is a name of (/dev/stdout, /dev/fd/3), or None."""
    if path.is_symlink():
        for one in _links(path):
            found = re.fullmatch(rf"/(?:dev|proc/(?:self|{os.getpid()}))/fd/(\d+)", str(one))
            if found:
                return int(found[1])
    return None


def _links(path: Path) -> Iterable[Path]:
    for _ in range(40):  # the limit of Linux
        yield path.absolute()
        if not path.is_symlink():
            return
        path = path.parent / os.readlink(path)


def _write_through(path: Path, pieces: Iterable[bytes]) -> None:
    known = _open_already(path)
    if known is not None:
        with os.fdopen(
            os.dup(known), "wb"
        ) as stream:  # at the place where it is, not at the file's beginning
            stream.writelines(pieces)
        return
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a reader.
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise DataError("is a pipe without a reader, expected a file") from error
        raise
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb") as stream:
        stream.writelines(pieces)


def _replace(target: Path, pieces: Iterable[bytes]) -> None:
    try:
        there = target.lstat()
    except FileNotFoundError:
        there = None

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags, 0o666 if there is None else there.st_mode & 0o777)

    with unfinished_beside(target) as unfinished:
        with open(unfinished, "xb", opener=opened) as stream:
            if there is not None:
                with suppress(
                    PermissionError
                ):  # only root gives files away, and others the group they are in
                    os.fchown(stream.fileno(), there.st_uid, there.st_gid)
                os.fchmod(stream.fileno(), there.st_mode & 0o777)
            stream.writelines(pieces)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(target)


@contextmanager
def unfinished_beside(target: Path) -> Iterator[Path]:
    """Yield a name next to a file or folder, for writing it; what has it at the end is removed, also on SIGTERM. It
    tells machine (a digest) and process: what killed runs of this machine left under such names is removed first.
    """
    machine = sha256(socket.gethostname().encode()).hexdigest()[:8]
    stray = re.compile(
        rf"\.{re.escape(target.name)}\.{machine}-(\d+)-[0-9a-f]{{8}}\.new(-journal|-wal|-shm)?"
    )
    try:
        beside = os.listdir(target.parent)
    except OSError:
        beside = []  # the error follows when it is written
    for name in beside:
        found = stray.fullmatch(name)
        if found and not _is_running(int(found[1])):
            _remove(target.with_name(name))
    unfinished = target.with_name(f".{target.name}.{machine}-{os.getpid()}-{secrets.token_hex(4)}.new")
    with terminations_interrupt():
        try:
            yield unfinished
        finally:
            for suffix in ("", "-journal", "-wal", "-shm"):
                _remove(unfinished.with_name(unfinished.name + suffix))


def _remove(path: Path) -> None:
    with suppress(OSError):  # not there, another's, or a file system for reading alone
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            shutil.rmtree(path)  # of an export to Parquet


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
