"""What is read: regular files, never waited for; TOML in a time that grows with its size."""

import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import DataError, UsageError, read_bundle
from kernelcast.runtime.request.models import load_model
from kernelcast.runtime.small_file import parse_toml, read_small_file
from kernelcast.runtime.stack import find_stack
from kernelcast.walltime.job import BatchScript, read_site

_READERS: dict[str, Callable[[Path], object]] = {
    "small file": lambda path: read_small_file(path, where="x", most_bytes=10),
    "bundle": read_bundle,
    "model": lambda path: load_model(str(path)),
    "stack": lambda path: find_stack(str(path)),
    "script": BatchScript.read,
    "site": lambda path: read_site({"KERNELCAST_SITE": str(path)}),
}


@pytest.mark.parametrize("reader", _READERS)
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, reader: str) -> None:
    pipe, folder, device = tmp_path / "pipe.toml", tmp_path / "folder.toml", tmp_path / "device.toml"
    os.mkfifo(pipe)
    folder.mkdir()
    device.symlink_to("/dev/zero")
    for path in (pipe, folder, device):
        with pytest.raises(
            (DataError, UsageError),
            match=r"regular file|is a (folder|pipe|device)|config.json: no such|expected the path",
        ):
            _READERS[reader](path)


def test_a_key_of_many_parts_is_refused_at_once() -> None:
    for text in (".".join(["a"] * 200_000) + " = 1", "[" + '"a" . ' * 70_000 + "a]", "x" * 400_000 + "!"):
        with pytest.raises(ValueError, match=r"more than 16 parts|line 1"):
            parse_toml(text.encode())
    assert parse_toml(b"a.b.'c'.\"d\" = [1.5, 2.5]\n") == tomllib.loads("a.b.c.d = [1.5, 2.5]")
    with pytest.raises(ValueError, match=r"a key of more than 16 parts \(at line 2\)"):
        parse_toml(b"a = 1\nb = {" + b".".join([b"c"] * 17) + b" = 1}\n")


@given(st.text(alphabet="ab.=[]{}'\" \n#1", max_size=60))
def test_short_documents_are_read_as_tomllib_reads_them(text: str) -> None:
    def read(parse: Callable[[], object]) -> object:
        try:
            return parse()
        except ValueError:
            return None

    if text.count(".") < 16:
        assert read(lambda: parse_toml(text.encode())) == read(lambda: tomllib.loads(text))
