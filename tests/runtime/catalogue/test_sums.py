"""Bundles that ship are read without writing them again: their digests are listed, and each is verified here."""

from hashlib import sha256
from pathlib import Path

import pytest

from kernelcast.runtime.bundle.file import read_bundle
from kernelcast.runtime.shipped import BUNDLES, SUMS

PATHS = sorted(BUNDLES.glob("*.kcast"))


def test_all_are_listed() -> None:
    sums = "".join(f"{sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in PATHS)
    assert SUMS.read_text(encoding="utf-8") == sums


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_each_is_what_kernelcast_writes(path: Path) -> None:
    bundle = read_bundle(path)
    assert bundle == read_bundle(path, verified=(bundle.digest,))
