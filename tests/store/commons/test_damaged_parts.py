"""Parts of an index that says what they are, cut, longer or no xz, unpacked in blocks of any size."""

import lzma
import zlib
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from kernelcast.runtime.errors import DataError
from kernelcast.store.commons import pull as pulling
from kernelcast.store.commons.index import INDEX_FILE

from .test_pull import changed_index, digest, source

NOT_XZ = "is not xz"
DAMAGED = {
    "empty": (lambda packed: b"", r"parts\[0\]\.size_bytes is"),
    "one byte": (lambda packed: packed[:1], "ends early; nothing was merged"),
    "half": (lambda packed: packed[: len(packed) // 2], "ends early; nothing was merged"),
    "all but the last": (lambda packed: packed[:-1], "ends early; nothing was merged"),
    "no check": (lambda packed: packed[:-40] + bytes(40), NOT_XZ),
    "a bit": (lambda packed: _flipped(packed), NOT_XZ),
    "plain": (lzma.decompress, NOT_XZ),
    "older lzma": (lambda packed: lzma.compress(lzma.decompress(packed), lzma.FORMAT_ALONE), NOT_XZ),
    "zlib": (lambda packed: zlib.compress(lzma.decompress(packed)), NOT_XZ),
    "longer": (lambda packed: lzma.compress(lzma.decompress(packed) + b"1"), r"unpacks to more than [\d,]+ bytes"),
    "other": (lambda packed: lzma.compress(lzma.decompress(packed)[:-1] + b"1"), "unpacks to another database"),
    "shorter": (lambda packed: lzma.compress(lzma.decompress(packed)[:-1]), "unpacks to another database"),
}  # fmt: skip


def _flipped(packed: bytes) -> bytes:
    content = bytearray(packed)
    content[Random(1).randrange(100, len(content) - 100)] ^= 4
    return bytes(content)


@pytest.mark.parametrize("block_bytes", [1 << 20, 1 << 12])
def test_damaged_parts(
    public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    pulling.pull(source(public), tmp_path / "whole.db")
    monkeypatch.setattr(pulling, "_BLOCK_BYTES", block_bytes)
    pulling.pull(source(public), tmp_path / "blocks.db")
    assert digest(tmp_path / "whole.db") == digest(tmp_path / "blocks.db")
    part = max((public / "parts").iterdir(), key=lambda one: one.stat().st_size)
    packed, index = part.read_bytes(), (public / INDEX_FILE).read_bytes()
    assert len(lzma.decompress(packed)) > 4 << 12
    for name, (damage, message) in DAMAGED.items():
        damaged = damage(packed)
        known = {"digest": sha256(damaged).hexdigest(), "size_bytes": len(damaged)}
        (public / "parts" / f"{known['digest']}.db.xz").write_bytes(damaged)

        def change(values: dict, known: dict = known) -> None:
            values["parts"] = [
                {**one, **known} for one in values["parts"] if one["digest"] == part.name.split(".")[0]
            ]

        changed_index(public, change)
        with pytest.raises(DataError, match=message):
            pulling.pull(source(public), tmp_path / f"{name}.db")
        (public / INDEX_FILE).write_bytes(index)
