"""A disk that is really full: a small tmpfs, which only root can mount."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.errors import DataError
from kernelcast.store import Database, Run, Sample, check_database, merge_databases
from kernelcast.store.export import Subset, export_database

SampleMaker = Callable[..., Sample]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def large(database: Database, make_sample: SampleMaker) -> Path:
    """A database that is larger than the disk."""
    database.add_samples(make_sample(rows=rows, kernels=200) for rows in range(1, 41))
    database.close()
    assert database.path.stat().st_size > 2**21
    return database.path


def one_line(caught: pytest.ExceptionInfo[DataError], path: Path) -> None:
    assert str(caught.value).startswith(f"{path}: ")
    assert "full" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_collector_on_a_full_disk_keeps_what_it_had_stored(
    disk: Path,
    make_sample: SampleMaker,
    run: Run,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
) -> None:
    path, stored = disk / "bench.db", 0

    def collect(database: Database) -> None:
        nonlocal stored
        for rows in range(1, 1000):
            stored += database.add_samples([make_sample(rows=rows, kernels=50)])

    with Database.open(path, create=True) as database:
        database.add_run(run, compute, fabric, software)
        with pytest.raises(DataError) as caught:
            collect(database)
    one_line(caught, path)
    assert stored > 3
    (disk / "bench.db-shm").unlink(missing_ok=True)
    assert check_database(path) == []
    with Database.open(path, read_only=True) as database:
        assert database.row_counts()["sample"] == stored


def test_a_merge_into_a_full_disk_leaves_the_target_as_it_was(
    disk: Path,
    large: Path,
    make_sample: SampleMaker,
    run: Run,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
) -> None:
    target = disk / "target.db"
    with Database.open(target, create=True) as database:
        database.add_run(run, compute, fabric, software)
        database.add_samples([make_sample(rows=1000)])
        before = database.content_digest()
    with pytest.raises(DataError) as caught:
        merge_databases([large], target)
    one_line(caught, target)
    assert check_database(target) == []
    with Database.open(target) as database:
        assert database.content_digest() == before


def test_what_does_not_fit_is_not_made(disk: Path, large: Path) -> None:
    with pytest.raises(DataError) as caught:
        merge_databases([large], disk / "new.db")
    one_line(caught, disk / "new.db")
    with pytest.raises(DataError) as caught:
        export_database(large, disk / "part.db", Subset())
    one_line(caught, disk / "part.db")
    (disk / "filler").write_bytes(bytes(2**21 - 4096 * 8))
    with pytest.raises(DataError) as caught:
        Database.open(disk / "created.db", create=True)
    one_line(caught, disk / "created.db")
    assert [path.name for path in disk.iterdir()] == ["filler"]
    from kernelcast.store.parquet import export_parquet

    with pytest.raises(DataError, match=r"parquet: cannot be written \(.*[Nn]o space left"):
        export_parquet(large, disk / "parquet", Subset())
    assert [path.name for path in disk.iterdir()] == ["filler"]
