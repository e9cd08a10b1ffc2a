"""Do sites agree? Ratios and spreads of known factors, outliers by name, and a distrusted source."""

import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, SoftwareFingerprint
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Run, Sample
from kernelcast.store.commons.agreement import OWN, agreement, distrust
from kernelcast.store.commons.offers import offers
from kernelcast.store.commons.publish import publish
from kernelcast.store.commons.pull import pull
from kernelcast.store.commons.report import report_page
from kernelcast.store.commons.sources import Source, chosen_sources, read_sources, write_sources

COMPUTE = ComputeFingerprint(kind="cpu", device_name="Example CPU", cores=2, threads=1)


def measured(
    path: Path, day: int, factor: float, *, points: int = 12, torch: str = "2.13.0", noise: float = 0.0
) -> Path:
    """Gelu at some points, `factor` times as long as 10 µs, 20 µs, ...; every other one `noise` longer."""
    software = SoftwareFingerprint(torch=torch)
    run = Run(
        started_at=f"2026-01-{day:02}T08:00:00Z",
        kernelcast_version="0.1.0",
        command="collect compute",
        compute_id=COMPUTE.digest,
        software_id=software.digest,
    )
    with Database.open(path, create=True) as database:
        database.add_run(run, COMPUTE, None, software)
        database.add_samples(
            Sample(
                run_id=run.id,
                operator="gelu",
                direction=Direction.FORWARD,
                dtype="float32",
                vector=(4, 128, 64 * i),
                time_us=10.0 * i * factor * (1 + noise * (i % 2)),
                measured_at=run.started_at,
            )
            for i in range(1, points + 1)
        )
    return path


def sites(folder: Path, **factors: float) -> Path:
    """A database that was pulled from a source for every factor."""
    sources = []
    for day, (name, factor) in enumerate(factors.items(), start=1):
        publish(measured(folder / f"{name}.db", day, factor), folder / name, about={"site": name.upper()})
        sources.append(Source(name=name, address=(folder / name).as_uri()))
        pull(sources[-1], folder / "all.db")
    write_sources(sources)
    return folder / "all.db"


def test_an_outlier_of_four_is_named_with_its_factor(tmp_path: Path) -> None:
    found = agreement(sites(tmp_path, a=1.0, b=1.02, c=0.99, slow=1.5))
    assert [one.site for one in found if one.is_outlier] == ["slow"]
    assert found[0].site == "slow"
    assert found[0].ratio == pytest.approx(1.5 / 1.01, rel=1e-3)
    assert (found[0].sites, found[0].points) == (4, 12)
    assert found[0].spread == pytest.approx(1, rel=1e-3)
    assert str(found[0]).startswith(
        "slow is 1.49 × the median of 4 sites in gelu (forward, float32) on Example CPU"
    )
    assert {one.site: round(one.ratio, 2) for one in found[1:]} == {"a": 0.99, "b": 1.01, "c": 0.98}


def test_sites_that_scatter_alike_are_no_outliers(tmp_path: Path) -> None:
    assert not [one for one in agreement(sites(tmp_path, a=1.0, b=1.2, c=0.8, d=1.3)) if one.is_outlier]


def test_of_two_neither_is_an_outlier_and_each_is_compared_with_the_other(tmp_path: Path) -> None:
    path = sites(tmp_path, a=1.0)
    measured(path, 20, 2.0, noise=0.21)
    found = {one.site: one for one in agreement(path)}
    assert found.keys() == {"a", OWN}
    assert not any(one.is_outlier for one in found.values())
    assert found[OWN].ratio == pytest.approx(1 / found["a"].ratio)
    assert found[OWN].ratio == pytest.approx(2 * math.sqrt(1.21), rel=1e-3)
    assert found[OWN].spread == pytest.approx(1.21, rel=1e-3)


def test_other_software_and_other_points_are_not_compared(tmp_path: Path) -> None:
    path = sites(tmp_path, a=1.0)
    measured(path, 20, 2.0, torch="2.14.0")
    assert agreement(path) == []


def test_two_points_of_three_sites_name_nobody(tmp_path: Path) -> None:
    path = sites(tmp_path, a=1.0, b=1.0)
    measured(path, 20, 3.0, points=2)
    found = {one.site: one for one in agreement(path)}
    assert found[OWN].points == 2
    assert not any(one.is_outlier for one in found.values())


def test_the_page_names_sites_ages_and_outliers(tmp_path: Path) -> None:
    path = sites(tmp_path, a=1.0, b=1.02, slow=1.5)
    listed = [(source, source.index()) for source in read_sources()]
    page = report_page(listed, offers(), agreement(path), "all.db", datetime(2026, 1, 31, 8, tzinfo=UTC))
    assert "slow is 1.47 × the median of 3 sites in gelu" in page
    assert [f"12 · {days} days" in page for days in (30, 29, 28, 27)] == [True, True, True, False]
    assert "<script" in page  # which sorts
    assert "http" not in page.replace('http-equiv="Content-Security-Policy"', "")
    empty = report_page([], [], [], "", datetime(2026, 1, 31, tzinfo=UTC))
    assert "None was added." in empty


def test_a_distrusted_source_is_taken_out_and_not_asked_again(tmp_path: Path) -> None:
    path = sites(tmp_path, a=1.0)
    with Database.open(path, read_only=True) as database:
        before = database.content_digest()
    publish(measured(tmp_path / "slow.db", 20, 1.5), tmp_path / "slow")
    slow = Source(name="slow", address=(tmp_path / "slow").as_uri())
    pull(slow, path)
    write_sources([Source(name="a", address=(tmp_path / "a").as_uri()), slow])
    [(_, reverted)] = distrust("slow", [path])
    assert reverted.content_digest == before
    assert reverted.removed["sample"] == 12
    assert [one.name for one in chosen_sources(())] == ["a"]
    assert [one.trust for one in read_sources()] == ["not signed", "distrusted"]
    with pytest.raises(UsageError, match="source slow is distrusted, expected another"):
        chosen_sources(("slow",))
    [(_, again)] = distrust("slow", [path])
    assert again.merges == ()
    with pytest.raises(UsageError, match="source 'x' is unknown, expected a or slow"):
        distrust("x", [])
    with pytest.raises(DataError, match=r"none\.db: no such database"):
        distrust("a", [tmp_path / "none.db"])
