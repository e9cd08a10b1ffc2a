"""Files that commands write: regular ones are replaced as a whole, everything else is written on or refused."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kernelcast.runtime import DataError, UsageError
from kernelcast.runtime.output_file import (
    check_target,
    check_writable,
    write_bytes,
    write_companion,
    write_pieces,
)


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for text in ("one", "another"):
        write_pieces(path, iter(text))
        assert path.read_text() == text
    assert os.listdir(tmp_path) == ["a"]


def test_what_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def pieces() -> object:
        yield "new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_pieces(path, pieces())  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to("folder/file")
    for text in ("one", "another"):  # the first time, it leads nowhere
        write_pieces(link, [text])
        assert link.is_symlink()
        assert (tmp_path / "folder" / "file").read_text() == text
    assert os.listdir(tmp_path / "folder") == ["file"]


def test_a_replaced_file_keeps_its_mode_and_owner(tmp_path: Path) -> None:
    path, new = tmp_path / "a", tmp_path / "b"
    path.write_text("old")
    path.chmod(0o640)
    owner = (12345, 12346) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    os.chown(path, *owner)
    before = os.umask(0o027)
    try:
        for one in (path, new):
            write_bytes(one, b"new", "x")
    finally:
        os.umask(before)
    found = path.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o640, *owner)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(new.stat().st_mode) == 0o640  # as the umask has it
    path.chmod(0o4777)
    write_bytes(path, b"another", "x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o777  # no set-user-id bit for another content


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["file", "database", "folder"])
def test_what_is_ended_leaves_no_unfinished_file(tmp_path: Path, kind: str, number: signal.Signals) -> None:
    code = {
        "file": "write_pieces(path, pieces())",
        "database": "from kernelcast.store.database_file import unfinished_file\n"
        "with unfinished_file(path) as new: list(pieces())",
        "folder": "with unfinished_beside(path) as new:\n  new.mkdir(); (new / 'part').touch(); list(pieces())",
    }[kind]
    code = (
        "import time; from pathlib import Path\n"
        "from kernelcast.runtime.output_file import unfinished_beside, write_pieces\n"
        f"path = Path({str(tmp_path / 'out')!r})\n"
        "def pieces():\n"
        "  yield 'begun'\n"
        "  print('begun', flush=True)\n"
        "  time.sleep(600)\n" + code
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"begun\n"
        assert len(os.listdir(tmp_path)) >= 1
        run.send_signal(number)
        assert run.wait(300) != 0
    assert os.listdir(tmp_path) == []


def test_what_nobody_named_goes_through_no_link_and_over_no_other_file(tmp_path: Path) -> None:
    path, other = tmp_path / "a.sig", tmp_path / "mine.db"
    for content in (b"SIG one", b"SIG two"):
        write_companion(path, content, "x", begins=b"SIG")
        assert path.read_bytes() == content
    path.unlink()
    other.write_bytes(b"SIG mine")
    path.symlink_to(other)
    with pytest.raises(DataError, match=r"^x: is a link or no file, expected a regular file or none$"):
        write_companion(path, b"SIG", "x", begins=b"SIG")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"^x: is a link or no file"):
        write_companion(path, b"SIG", "x", begins=b"SIG")
    path.unlink()
    path.write_bytes(b"mine")
    with pytest.raises(DataError, match=r"^x: is another file, expected one that begins with SIG$"):
        write_companion(path, b"SIG", "x", begins=b"SIG")
    assert (path.read_bytes(), other.read_bytes()) == (b"mine", b"SIG mine")
    assert sorted(os.listdir(tmp_path)) == ["a.sig", "mine.db"]


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^x: cannot be written \(No space left on device\)$"):
        write_bytes(Path("/dev/full"), b"content", "x")
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    for path in (Path("/dev/null"), link):
        check_writable(path, "x")
        check_target(path, "--html")
        write_bytes(path, b"content", "x")
    assert link.is_symlink()
    assert all(stat.S_ISCHR(os.stat(f"/dev/{name}").st_mode) for name in ("null", "full"))


def test_a_pipe_is_written_on_where_somebody_reads(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"^x: is a pipe without a reader, expected a file$"):
        write_bytes(path, b"content", "x")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_bytes(path, b"content", "x")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    assert stat.S_ISFIFO(path.stat().st_mode)


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_standard_output_is_written_on(tmp_path: Path, kind: str) -> None:
    code = (
        "from pathlib import Path; from kernelcast.runtime.output_file import write_pieces\n"
        "print('before', flush=True); write_pieces(Path('/dev/stdout'), ['during\\n'])"
    )
    out = tmp_path / "out"
    with out.open("a") as stream:
        target = subprocess.PIPE if kind == "pipe" else stream
        done = subprocess.run([sys.executable, "-c", code], stdout=target, text=True, check=True)
    assert (done.stdout if kind == "pipe" else out.read_text()) == "before\nduring\n"
    assert os.listdir(tmp_path) == ["out"]


def test_other_things_are_refused_by_name(tmp_path: Path) -> None:
    for check in (check_target, check_writable):
        with pytest.raises((UsageError, DataError), match="is a folder, expected a file"):
            check(tmp_path, "--html")
    with pytest.raises(DataError, match=r"^bundle x: is a folder, expected a file$"):
        write_bytes(tmp_path, b"", "bundle x")
    with pytest.raises(UsageError, match="no such folder"):
        check_target(tmp_path / "none" / "a", "--html")
    with pytest.raises(DataError, match=r"^x: cannot be written \("):
        write_bytes(tmp_path / "a\0b", b"", "x")
