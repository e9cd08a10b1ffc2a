"""`diff_databases`: rows that only one database has, and rows that an upgrade made stale."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, SoftwareFingerprint
from kernelcast.runtime.errors import DataError
from kernelcast.store import Database, Run, Sample
from kernelcast.store.difference import FieldDifference, diff_databases

SampleMaker = Callable[..., Sample]

GPU = ComputeFingerprint(kind="cuda", device_name="Example GPU", memory_gib=80, power_limit_w=400)
OLD = SoftwareFingerprint(torch="2.13.0", driver="550")
NEW = SoftwareFingerprint(torch="2.13.0", driver="570")


@pytest.fixture
def measure(tmp_path: Path, run: Run, make_sample: SampleMaker) -> Callable[..., Path]:
    """Make a database of samples on a device, with a driver, on a day."""

    def make(name: str, *parts: tuple[ComputeFingerprint, SoftwareFingerprint, str, int]) -> Path:
        path = tmp_path / name
        with Database.open(path, create=True) as database:
            for compute, software, day, count in parts:
                made = replace(run, compute_id=compute.digest, software_id=software.digest, fabric_id=None)
                made_id = database.add_run(made, compute, None, software)
                moment = f"2026-{day}T00:00:00Z"
                samples = [make_sample(rows=rows, run_id=made_id) for rows in range(1, count + 1)]
                database.add_samples(replace(sample, measured_at=moment) for sample in samples)
        return path

    return make


def test_the_same_content_has_no_difference(measure: Callable[..., Path]) -> None:
    parts = [(GPU, OLD, "01-01", 3), (GPU, NEW, "02-01", 2)]
    found = diff_databases(measure("a.db", *parts), measure("b.db", *reversed(parts)))
    assert found.is_same_content
    assert not found.new_fingerprints
    assert [(stale.database, stale.samples) for stale in found.stale] == [("A", 3), ("B", 3)]


def test_a_driver_upgrade_makes_samples_stale(measure: Callable[..., Path]) -> None:
    a, b = measure("a.db", (GPU, OLD, "01-01", 4)), measure("b.db", (GPU, NEW, "02-01", 2))
    found = diff_databases(a, b)
    [new] = found.new_fingerprints
    driver = (FieldDifference(name="driver", one="550", other="570"),)
    assert (new.kind, new.id, new.nearest_id, new.fields) == ("software", NEW.digest, OLD.digest, driver)
    [stale] = found.stale
    assert (stale.database, stale.samples, stale.fields) == ("A", 4, driver)
    assert (found.only_in_a["sample"], found.only_in_b["sample"]) == (4, 2)
    assert (found.only_in_a["hardware"], found.only_in_b["software"]) == (0, 1)
    assert [(s.database, s.fields) for s in diff_databases(b, a).stale] == [("B", driver)]


def test_other_hardware_is_set_against_the_nearest(measure: Callable[..., Path]) -> None:
    other = replace(GPU, power_limit_w=300)
    far = replace(GPU, device_name="Another GPU", memory_gib=40, power_limit_w=250)
    a = measure("a.db", (GPU, OLD, "01-01", 1), (far, OLD, "01-01", 1))
    found = diff_databases(a, measure("b.db", (other, OLD, "02-01", 1)))
    [new] = found.new_fingerprints
    assert new.nearest_id == GPU.digest
    assert new.fields == (FieldDifference(name="power_limit_w", one=400, other=300),)
    assert found.stale == ()


def test_an_empty_database_has_nothing_near(measure: Callable[..., Path], tmp_path: Path) -> None:
    Database.open(tmp_path / "empty.db", create=True).close()
    found = diff_databases(tmp_path / "empty.db", measure("b.db", (GPU, OLD, "01-01", 1)))
    assert {(new.kind, new.nearest_id) for new in found.new_fingerprints} == {
        ("hardware", None),
        ("software", None),
    }
    assert found.only_in_b["sample"] == 1


def test_what_is_no_database_is_named(measure: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.db: no such database"):
        diff_databases(measure("a.db", (GPU, OLD, "01-01", 1)), tmp_path / "none.db")
