"""Version 3 to 4: the flag `burst` becomes the load of a sample, and what was printed in its detail columns.

schemas/version_3.db was written by the code of version 3: imports of tests/data/importers/bursts*.parquet, which are
made-up rows in the form of aiconfigurator's tables.
"""

import shutil
from pathlib import Path

import pytest

from kernelcast.runtime.hardware.load import Load
from kernelcast.store import Database, check_database, merge_databases
from kernelcast.store.importers import read_aiconfigurator, store_parsed

VERSION_3 = Path(__file__).parent / "schemas" / "version_3.db"
MADE = Path(__file__).resolve().parents[1] / "data" / "importers"
FILES = [MADE / "bursts_with_power.parquet", MADE / "bursts.parquet"]


@pytest.fixture
def migrated(tmp_path: Path) -> Path:
    path = Path(shutil.copy(VERSION_3, tmp_path / "migrated.db"))
    Database.open(path).close()
    return path


def test_a_flag_becomes_a_load(migrated: Path) -> None:
    with Database.open(migrated, read_only=True) as database:
        rows = database.read_samples()
        assert {row.load for row in rows} == {Load.BURST}
        assert not any(row.flags for row in rows)
        # As the rows of the file say it: 400.04 + 31 n W, to four digits; the others have none.
        powers = sorted(row.power_w for row in rows if row.power_w is not None)
        assert powers == [524.0, 555.0, 586.0, 617.0, 648.0, 679.0, 710.0, 741.0]
        statistics = {row["statistic"] for row in database.query("SELECT statistic FROM sample")}
        assert statistics == {
            "mean of 6 replays of a CUDA graph after 3 warm-ups, power limit 700 W",
            "mean of 6 replays of a CUDA graph after 3 warm-ups",
        }


def test_importing_the_same_files_again_adds_nothing(migrated: Path) -> None:
    assert check_database(migrated) == []
    with Database.open(migrated) as database:
        before = database.content_digest()
        for path in FILES:
            assert store_parsed(database, read_aiconfigurator([path], strict=True)).added == 0
        assert database.content_digest() == before


def test_an_old_and_a_migrated_copy_merge_without_duplicates(migrated: Path, tmp_path: Path) -> None:
    merged = merge_databases([VERSION_3, migrated], tmp_path / "merged.db")
    with Database.open(migrated, read_only=True) as database:
        assert merged.content_digest == database.content_digest()
