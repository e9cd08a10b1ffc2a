"""datasets/: every table is the one that its digest names, and its source and licence are stated."""

from pathlib import Path

import pytest

from kernelcast.datasets import build
from kernelcast.runtime.bundle.file import read_bundle
from kernelcast.runtime.catalogue import measured_hardware

ROOT = Path(__file__).parent.parent.parent
DATASETS = ROOT / "datasets"


def test_tables_are_those_of_their_digests() -> None:
    assert build.digests() == (DATASETS / "SHA256SUMS").read_text(encoding="utf-8")
    assert len(build.digests().splitlines()) > 60


def test_every_folder_has_a_source_and_a_licence() -> None:
    notice = (DATASETS / "NOTICE.md").read_text(encoding="utf-8")
    folders = [path for path in DATASETS.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert folders
    for folder in folders:
        assert f"| {folder.name}/ | https://" in notice
        assert (folder / "LICENSE").read_text(encoding="utf-8").strip()


def test_what_ships_is_small_and_has_a_recipe() -> None:
    assert set(build.TABLES) == {row.device for row in measured_hardware().values()}
    bundles = [build.bundle_file(one) for one in measured_hardware().values()]
    assert sum(path.stat().st_size for path in bundles) <= 25_000_000
    tables = [path for path in DATASETS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in tables) <= 25_000_000


def test_a_regressor_that_differs_is_named() -> None:
    one, other = (read_bundle(build.bundle_file(measured_hardware()[name])) for name in ("a100-sxm", "gh200"))
    assert build.differences(one, one) == []
    assert "gemm (forward)" in build.differences(one, other)
    assert "flash_attention (backward)" in build.differences(one, other)


@pytest.mark.slow
def test_a_bundle_is_made_anew(tmp_path: Path) -> None:
    anew = build.build("a100-pcie", tmp_path / "a100-pcie.kcast")
    shipped = build.bundle_file(measured_hardware()["a100-pcie"])
    assert build.differences(read_bundle(shipped), read_bundle(anew)) == []
