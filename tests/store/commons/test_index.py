"""The index of a commons: what its fields may hold, which file is none, and what words and devices find."""

import json
import lzma
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from kernelcast.runtime.bundle.file import MAX_BUNDLE_BYTES
from kernelcast.runtime.errors import DataError
from kernelcast.store.commons.index import Description, Index, Part, PublishedBundle, read_index
from kernelcast.store.commons.pull import _unpack

PART = {
    "digest": "a" * 64, "size_bytes": 10, "database_digest": "b" * 64, "database_bytes": 100, "content": "ab",
    "rows": 1,
}  # fmt: skip
BUNDLE = {
    "digest": "c" * 64, "size_bytes": 10, "devices": ["NVIDIA H100 80GB HBM3"], "dtype": "bfloat16",
    "created_at": "2026-01-01T00:00:00Z", "regressors": 3,
}  # fmt: skip
DESCRIPTION = {"digest": "d" * 64, "size_bytes": 10, "kind": "fabric", "name": "ours"}
ABOUT = dict.fromkeys(("site", "contact", "licence"), "")
INDEX = {
    "published_at": "2026-01-01T00:00:00Z", "kernelcast_version": "1", "about": ABOUT, "hardware": {}, "fabric": {},
    "software": {}, "parts": [PART], "bundles": [BUNDLE], "descriptions": [DESCRIPTION],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "usual", "name", "allowed", "refused"),
    [
        (Part, PART, "digest", ["0" * 64], ["a" * 63, "a" * 65, "A" * 64, ""]),
        (Part, PART, "parquet", ["", "0" * 64], ["a" * 63, "a" * 65, "g" * 64]),
        (Part, PART, "run", ["", "a", "a" * 64], ["a" * 65, "../a", "A"]),
        (Part, PART, "operator", ["", "x" * 300], ["x" * 301, "a\nb"]),
        (Part, PART, "size_bytes", [1, 2**34], [0, 2**34 + 1]),
        (Part, PART, "database_bytes", [1, 2**34], [0, 2**34 + 1]),
        (Part, PART, "rows", [1], [0]),
        (PublishedBundle, BUNDLE, "size_bytes", [1, MAX_BUNDLE_BYTES], [0, MAX_BUNDLE_BYTES + 1]),
        (PublishedBundle, BUNDLE, "regressors", [1], [0]),
        (Description, DESCRIPTION, "size_bytes", [1, 2**20], [0, 2**20 + 1]),
        (Description, DESCRIPTION, "kind", ["fabric", "stack"], ["bundle"]),
    ],
)
def test_what_a_field_may_hold(
    kind: Any, usual: dict[str, Any], name: str, allowed: list[Any], refused: list[Any]
) -> None:
    for value in allowed:
        assert kind.from_dict(usual | {name: value}).to_dict().get(name, "") == value
    for value in refused:
        with pytest.raises(DataError, match=name):
            kind.from_dict(usual | {name: value})


def test_an_index_is_read_as_it_was_written() -> None:
    index = Index.from_dict(INDEX)
    assert read_index(index.text(), "here") == index
    assert index.text() == read_index(index.text(), "here").text()
    assert [one.path for one in index.files] == [
        f"parts/{'a' * 64}.db.xz", f"bundles/{'c' * 64}.kcast", f"descriptions/{'d' * 64}.toml"
    ]  # fmt: skip
    [part] = index.parts
    assert part.parquet_path == ""
    assert Part.from_dict(PART | {"parquet": "e" * 64}).parquet_path == f"parquet/{'e' * 64}.parquet"


@pytest.mark.parametrize("table", ["hardware", "fabric", "software"])
def test_descriptions_are_texts_on_one_line(table: str) -> None:
    assert Index.from_dict(INDEX | {table: {"a": "x" * 300}})
    for wrong in ({"a": "x" * 301}, {"a": "b\nc"}, {"a\n": "b"}):
        with pytest.raises(
            DataError, match=r"description is .*, expected a text of at most 300 characters on one line"
        ):
            Index.from_dict(INDEX | {table: wrong})


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"{", r"^here: is not JSON \(.*\), expected the index of a commons$"),
        (b"[" * 100_000, "^here: is not JSON"),
        (b"[]", "^here: has format 'None', this kernelcast reads 'kernelcast.commons/1'$"),
        (b'{"format": 1}', "^here: has format '1', this kernelcast reads 'kernelcast.commons/1'$"),
        (b'{"format": "kernelcast.commons/2"}', "reads 'kernelcast.commons/1'; use a newer kernelcast$"),
        (
            b'{"format": "kernelcast.commons/0"}',
            "has format 'kernelcast.commons/0', .* reads 'kernelcast.commons/1'$",
        ),
        (b'{"format": "kernelcast.commons/1"}', "^here: .*published_at"),
    ],
)
def test_what_is_no_index_is_named(content: bytes, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        read_index(content, "here")


def test_bundles_are_found_by_any_name_of_their_device() -> None:
    other = BUNDLE | {"devices": ["Example CPU"], "digest": "e" * 64}
    index = read_index(
        json.dumps({"format": "kernelcast.commons/1", **INDEX, "bundles": [BUNDLE, other]}).encode(), "x"
    )
    for device, found in (
        ("h100-sxm", "c"), ("H100", "c"), ("nvidia h100 80gb hbm3", "c"), ("example", "e"), ("a100-sxm", "")
    ):  # fmt: skip
        assert [one.digest[0] for one in index.bundles_of(device)] == list(found)


@pytest.mark.parametrize(("dictionary_mib", "is_read"), [(64, True), (128, False)])
def test_a_part_may_not_ask_for_much_memory(tmp_path: Path, dictionary_mib: int, is_read: bool) -> None:
    """The dictionary's size stands in the header of an xz block, before its checksum."""
    content = b"a database" * 100
    packed = bytearray(lzma.compress(content, preset=0))
    size = 4 * (packed[12] + 1)
    packed[16] = 2 * (dictionary_mib.bit_length() - 1 + 20 - 12)
    packed[12 + size - 4 : 12 + size] = crc32(packed[12 : 12 + size - 4]).to_bytes(4, "little")
    (tmp_path / "part.xz").write_bytes(packed)
    digest = sha256(content).hexdigest()
    part = Part.from_dict(PART | {"database_digest": digest, "database_bytes": len(content)})
    if is_read:
        assert _unpack(part, tmp_path / "part.xz", tmp_path).read_bytes() == content
        return
    with pytest.raises(DataError, match=r"is not xz .Memory usage limit exceeded.; nothing was merged"):
        _unpack(part, tmp_path / "part.xz", tmp_path)
