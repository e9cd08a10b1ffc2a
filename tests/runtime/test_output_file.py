"""Files that commands write: regular ones are replaced as a whole, everything else is written on or refused."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kernelcast.runtime import DataError, UsageError
from kernelcast.runtime.output_file import check_target, check_writable, write_bytes, write_pieces


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
    with pytest.raises(UsageError, match="there is no folder"):
        check_target(tmp_path / "none" / "a", "--html")
    with pytest.raises(DataError, match=r"^x: cannot be written \("):
        write_bytes(tmp_path / "a\0b", b"", "x")
