"""`train_bundle` with a prior: few rows correct another device's regressors, and no rows carry them over."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernelcast.runtime import DataError, read_bundle
from kernelcast.runtime.answers.bundle_check import check_bundle
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.catalogue import hardware_bundle
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Sample
from kernelcast.train.dataset import Table
from kernelcast.train.fit import Trained, train_bundle
from kernelcast.train.prior import Prior, _log_half_width, _published, corrected

Measure = Callable[..., list[Sample]]
Vector = tuple[int, ...]
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
INPUT_GRADIENT, WEIGHT_GRADIENT = Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT
NEW = ComputeFingerprint(kind="cpu", device_name="Another CPU", cores=4, threads=1)

pytestmark = pytest.mark.usefixtures("few_candidates")


@pytest.fixture(scope="module")
def kept() -> dict[str, Bundle]:
    """What was trained already: it takes two seconds, and nothing changes it."""
    return {}


@pytest.fixture
def donor(kept: dict[str, Bundle], database: Database, measure: Measure, tmp_path: Path) -> Bundle:
    """A bundle of the made-up device: two operators in both directions, from 60 rows each."""
    if not kept:
        for operator in ("gelu", "gemm"):
            for direction in (FORWARD, BACKWARD):
                measure(database, operator, direction, 60)
        kept["donor"] = read_bundle(train_bundle(database, tmp_path / "donor.kcast").path)
    return kept["donor"]


@pytest.fixture
def new_database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "new.db", create=True) as opened:
        yield opened


@pytest.fixture
def new_us(
    roofline_us: Callable[[str, Direction, Vector], float],
) -> Callable[[str, Direction, Vector], float]:
    """Times of another device: 1.7 times the donor's, relatively faster for larger workloads."""

    def time_us(operator: str, direction: Direction, vector: Vector) -> float:
        there = roofline_us(operator, direction, vector)
        return 1.7 * there * (there / 100.0) ** -0.2

    return time_us


@pytest.fixture
def measure_new(
    new_database: Database,
    measure: Measure,
    workloads: Callable[..., list[Vector]],
    new_us: Callable[[str, Direction, Vector], float],
) -> Callable[..., None]:
    """Measure some workloads on the other device."""

    def store(operator: str, direction: Direction, count: int, *, seed: int = 5) -> None:
        times_us = {v: new_us(operator, direction, v) for v in workloads(operator, count, seed=seed)}
        measure(new_database, operator, direction, times_us=times_us, compute=NEW)

    return store


def error(
    bundle: Bundle,
    operator: str,
    direction: Direction,
    workloads: Callable[..., list[Vector]],
    time_us: Callable[[str, Direction, Vector], float],
) -> float:
    """Mean error on fifty other workloads."""
    vectors = workloads(operator, 50, seed=9)
    measured = np.array([time_us(operator, direction, vector) for vector in vectors])
    return float(np.mean(np.abs(Predictor(bundle).predict_us(operator, direction, vectors) / measured - 1)))


def test_few_points_correct_the_prior_and_the_rest_is_carried_over(
    donor: Bundle,
    new_database: Database,
    measure_new: Callable[..., None],
    workloads: Callable[..., list[Vector]],
    new_us: Callable[[str, Direction, Vector], float],
    tmp_path: Path,
) -> None:
    measure_new("gelu", FORWARD, 6)
    with pytest.raises(DataError, match="no operator has enough rows"):
        train_bundle(new_database, tmp_path / "alone.kcast")
    trained = train_bundle(new_database, tmp_path / "new.kcast", prior=donor)
    # A file of its own, as sound as any other.
    assert check_bundle(tmp_path / "new.kcast").models == 4
    bundle = read_bundle(tmp_path / "new.kcast")
    assert bundle.manifest.compute == (NEW,)
    assert bundle.model(("gelu", FORWARD)) == donor.model(("gelu", FORWARD))
    assert error(donor, "gelu", FORWARD, workloads, new_us) > 0.3
    assert error(bundle, "gelu", FORWARD, workloads, new_us) < 0.1
    points = {
        key: entry.transfer and entry.transfer.correction and entry.transfer.correction.points
        for key, entry in bundle.entries.items()
    }
    assert points == {
        ("gelu", FORWARD): 6,
        ("gelu", BACKWARD): None,
        ("gemm", FORWARD): None,
        ("gemm", BACKWARD): None,
    }
    assert trained.prior is not None
    assert "a device's peaks are not known" in trained.prior.scaled_by
    again = train_bundle(new_database, tmp_path / "again.kcast", prior=donor)
    assert again.digest == trained.digest


def test_one_row_is_enough_and_fewer_rows_widen(
    donor: Bundle, new_database: Database, measure_new: Callable[..., None], tmp_path: Path
) -> None:
    def half_width(trained: Trained) -> float:
        (time_us, low_us, _) = Predictor(read_bundle(trained.path)).answers("gelu", FORWARD, [[64, 64, 64]])[
            0
        ]
        return math.log(time_us / low_us)

    widths = []
    for count in (1, 4, 12):
        measure_new("gelu", FORWARD, count)
        widths.append(half_width(train_bundle(new_database, tmp_path / f"{count}.kcast", prior=donor)))
    assert widths[0] >= 0.5 > widths[1] > widths[2]


def test_enough_rows_get_a_regressor_of_their_own(
    donor: Bundle,
    new_database: Database,
    measure: Measure,
    workloads: Callable[..., list[Vector]],
    tmp_path: Path,
) -> None:
    # A law that has nothing to do with the donor's: what a table is known by best decides.
    measure(
        new_database,
        "gelu",
        FORWARD,
        times_us={v: 5.0 * v[2] ** 1.5 for v in workloads("gelu", 60, seed=3)},
        compute=NEW,
    )
    bundle = read_bundle(train_bundle(new_database, tmp_path / "new.kcast", prior=donor).path)
    assert bundle.entries["gelu", FORWARD].transfer is None
    assert bundle.entries["gelu", BACKWARD].transfer is not None


def test_a_sum_of_the_prior_is_corrected_by_its_parts(
    donor: Bundle,
    new_database: Database,
    measure: Measure,
    workloads: Callable[..., list[Vector]],
    new_us: Callable[[str, Direction, Vector], float],
    tmp_path: Path,
) -> None:
    for part in (INPUT_GRADIENT, WEIGHT_GRADIENT):
        halves = {v: 0.5 * new_us("gemm", BACKWARD, v) for v in workloads("gemm", 6, seed=5)}
        measure(new_database, "gemm", part, times_us=halves, compute=NEW)
    bundle = read_bundle(train_bundle(new_database, tmp_path / "new.kcast", prior=donor).path)
    assert ("gemm", INPUT_GRADIENT) not in bundle.entries
    assert error(donor, "gemm", BACKWARD, workloads, new_us) > 0.3
    assert error(bundle, "gemm", BACKWARD, workloads, new_us) < 0.15


def test_a_corrected_bundle_is_a_prior_again(
    donor: Bundle,
    new_database: Database,
    measure_new: Callable[..., None],
    workloads: Callable[..., list[Vector]],
    new_us: Callable[[str, Direction, Vector], float],
    tmp_path: Path,
) -> None:
    measure_new("gelu", FORWARD, 6)
    second = read_bundle(train_bundle(new_database, tmp_path / "second.kcast", prior=donor).path)
    vectors = np.array(workloads("gelu", 3, seed=7), dtype=np.float64)
    thrice_us = 3.0 * np.array([new_us("gelu", FORWARD, tuple(map(int, row))) for row in vectors])
    table = Table(operator="gelu", direction=FORWARD, workloads=vectors, times_us=thrice_us)
    entry = corrected(Prior.of(second, NEW, "float32"), table, statistic="quiet")
    third = replace(second, entries={entry.key: entry})
    asked = workloads("gelu", 20, seed=11)
    expected = 3.0 * np.array([new_us("gelu", FORWARD, vector) for vector in asked])
    assert Predictor(third).predict_us("gelu", FORWARD, asked) == pytest.approx(expected, rel=0.2)


def test_the_statistic_of_a_prior_is_kept_where_every_sample_has_it(
    donor: Bundle,
    new_database: Database,
    measure: Measure,
    measure_new: Callable[..., None],
    tmp_path: Path,
) -> None:
    def statistic(prior: Bundle) -> str:
        trained = train_bundle(new_database, tmp_path / "new.kcast", prior=prior)
        assert (trained.samples, trained.without_quiet) == expected
        return trained.manifest.statistic

    measure_new("gelu", FORWARD, 6)
    expected = (6, 0)
    assert statistic(donor) == "quiet"
    other = tuple(replace(one, statistic="middle_five") for one in donor.manifest.regressors)
    manifest = replace(donor.manifest, statistic="middle_five", regressors=other)
    assert statistic(replace(donor, manifest=manifest)) == "middle_five"
    measure(new_database, "gelu", FORWARD, times_us={(3, 3, 3): 30.0}, quiet=False, compute=NEW)
    expected = (7, 1)
    assert statistic(donor) == "middle_five"


@pytest.mark.parametrize(
    ("points", "expected"),
    # Of nine errors or more one holds 90 % of further ones, of fewer one and a half times the largest.
    [(1, 1.5), (8, 12.0), (9, 9.0), (10, 10.0), (19, 18.0), (20, 19.0)],
)
def test_the_half_width_of_few_points(points: int, expected: float) -> None:
    off = np.random.default_rng(3).permutation(np.arange(1.0, points + 1))
    assert _log_half_width(off) == expected
    assert _log_half_width(np.zeros(points)) == 0.5 / points


def test_a_prior_that_was_right_adds_nothing_to_its_interval(make_bundle: Callable[..., Path]) -> None:
    other = replace(NEW, device_name="A third CPU")
    prior = Prior.of(read_bundle(make_bundle(compute=[NEW, other])), other, "float32")
    assert prior.name == NEW.description  # what was measured first
    assert prior.is_comparable
    assert not Prior.of(prior.bundle, replace(other, kind="cuda"), "float32").is_comparable
    workloads = np.column_stack([np.ones(20), np.arange(1.0, 21), np.full(20, 64.0)])
    table = Table(operator="gelu", direction=FORWARD, workloads=workloads, times_us=np.full(20, 10.0))
    right = corrected(prior, table, statistic="quiet")
    assert right.transfer is not None
    # Of the bundle's own interval, a factor of 2, all errors are inside.
    assert (right.transfer.log_half_width, right.validation_error) == (0.0, pytest.approx(0.0, abs=1e-9))
    times_us = 10 * np.exp(np.where(np.arange(20) % 2, 1.5, -1.5))
    wrong = corrected(prior, replace(table, times_us=times_us), statistic="quiet")
    assert wrong.transfer is not None
    assert wrong.transfer.log_half_width > 1


def test_a_peak_that_is_not_published_is_that_of_16_bits() -> None:
    a100 = ComputeFingerprint(kind="cuda", device_name="NVIDIA A100-SXM4-80GB")
    found = {dtype: _published(a100, dtype) for dtype in ("float16", "float32", "of no known width")}
    assert found["of no known width"] == found["float16"] != found["float32"]
    assert found["float16"] is not None
    assert found["float16"].device == "a100-sxm"
    assert _published(NEW, "float16") is None


def test_peaks_of_known_devices_scale_the_prior() -> None:
    a100 = ComputeFingerprint(kind="cuda", device_name="NVIDIA A100-SXM4-80GB")
    prior = Prior.of(hardware_bundle("gh200"), a100, "float16")
    assert (prior.origin.device, prior.target.device) == ("gh200", "a100-sxm")
    assert prior.scaled_by == "the published peaks of both devices"
    assert prior.is_comparable
    large = np.array([[8.0, 4096.0, 8192.0]])
    key = "gelu", FORWARD
    there_us = Predictor(hardware_bundle("gh200")).predict_us(*key, large)
    assert prior.predicted_us(key, large) / there_us == pytest.approx(4.0e12 / 2.039e12, rel=0.05)
