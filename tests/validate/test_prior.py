"""A new device from a few points: what `validate prior` measures, on published data of an A100 and a GH200."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kernelcast.cli.option import whole_numbers
from kernelcast.cli.validate_data import prior
from kernelcast.runtime import DataError, UsageError
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.catalogue import hardware_bundle
from kernelcast.store import Database
from kernelcast.store.importers import read_estimate_train_time, store_parsed
from kernelcast.validate.prior import PriorValidation, validate_prior

ROOT = Path(__file__).parent.parent.parent
VISTA = ROOT / "datasets" / "estimate-train-time" / "Vista"
TEXT = Path(__file__).with_name("whole_prior.txt")
FUNCTIONS = ("gelu", "res_add", "layernorm", "embedding")


def imported(folder: Path, path: Path) -> Path:
    with Database.open(path, create=True) as database:
        store_parsed(database, read_estimate_train_time([folder]))
    return path


@pytest.fixture(scope="module")
def some_operators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of four of the GH200's operators."""
    folder = tmp_path_factory.mktemp("site") / "Vista"
    (folder / "operator").mkdir(parents=True)
    for name in FUNCTIONS:
        shutil.copy(VISTA / "operator" / f"NVIDIAGH200120GB_{name}_fp16.csv", folder / "operator")
    return imported(folder, folder.parent / "some.db")


@pytest.fixture(scope="module")
def a100() -> Bundle:
    return hardware_bundle("a100-sxm")


def by_way(found: PriorValidation) -> dict[tuple[int, str], dict[str, Any]]:
    return {(one.points, one.way): one.to_dict() for one in found.found}


def test_a_few_points_are_better_than_none_and_than_no_prior(some_operators: Path, a100: Bundle) -> None:
    with Database.open(some_operators, read_only=True) as database:
        found = validate_prior(a100, database, points=(5,), draws=3)
    assert (found.prior, found.target) == ("a100-sxm", "gh200")
    for one in found.found:
        assert (min(a.coverage or 0 for a in one.operators) > 0.5) == (one.way != "without prior")
    errors = by_way(found)
    telling, alone = errors[5, "telling"], errors[5, "without prior"]
    assert len(telling["operators"]) == 8
    assert telling["mean_error"] < 0.1 < found.uncorrected.to_dict()["mean_error"]
    assert telling["mean_error"] < min(alone["mean_error"], errors[5, "random"]["mean_error"])
    assert 0.9 < telling["coverage"] <= 1
    assert alone["coverage"] is None
    assert 0 < telling["minutes"] < 1


def test_whole_validation(some_operators: Path, a100: Bundle) -> None:
    """Every figure to three digits: `whole_prior.txt`, which WRITE_WHOLE_PRIOR=1 pytest THIS_FILE writes."""
    told: list[tuple[int, int, str]] = []
    with Database.open(some_operators, read_only=True) as database:
        found = validate_prior(
            a100, database, points=(2, 4), ways=("telling", "random"), without=("embedding",), draws=2,
            on_progress=lambda *done: told.append(done),
        )  # fmt: skip
    document = json.dumps([found.to_dict(), told]).replace("{", "\n{")
    printed = re.sub(r"-?\d+\.\d+(e[-+]?\d+)?", lambda number: f"{float(number[0]):.3g}", document) + "\n"
    if "WRITE_WHOLE_PRIOR" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")


def test_what_is_left_out_and_printed(some_operators: Path) -> None:
    options = ["a100-sxm", str(some_operators), "--points", "2", "--draws", "1", "--without", "embedding"]
    shown = CliRunner().invoke(prior, options)
    assert shown.exit_code == 0, shown.output
    assert "a100-sxm → gh200, scaled by the published peaks of both devices: 6 operators" in shown.stdout
    assert "left out: embedding" in shown.stdout
    document = json.loads(CliRunner().invoke(prior, [*options, "--json"]).stdout)
    assert document["format"] == "kernelcast.prior_validation/1"
    assert [(one["points"], one["way"]) for one in document["found"]] == [
        (2, "telling"),
        (2, "random"),
        (2, "without prior"),
    ]


@pytest.mark.parametrize("text", ["", "0", "5,5", "20,5", "5,x", "161"])
def test_points_that_are_no_rising_numbers(text: str) -> None:
    with pytest.raises(UsageError, match="expected rising numbers"):
        whole_numbers(text, "--points", 160, "rising numbers", is_rising=True)


def test_nothing_to_compare(some_operators: Path, a100: Bundle) -> None:
    with (
        Database.open(some_operators, read_only=True) as database,
        pytest.raises(DataError, match="no operator of the prior has 10 workloads"),
    ):
        validate_prior(
            a100, database, points=(5,), without=("gelu", "residual_add", "layer_norm", "embedding")
        )


@pytest.mark.slow(minutes=5)
def test_the_whole_device_from_what_ships(tmp_path: Path, a100: Bundle) -> None:
    """All operators that both have; flash attention's kernels differ, and Vista's Adam is impossible."""
    with Database.open(imported(VISTA, tmp_path / "vista.db"), read_only=True) as database:
        found = validate_prior(a100, database, ways=("telling",), without=("flash_attention",))
    five, twenty = by_way(found)[5, "telling"], by_way(found)[20, "telling"]
    assert len(five["operators"]) >= 20
    assert five["median_error"] < 0.085
    assert five["mean_error"] < 0.10
    assert twenty["median_error"] < 0.055
    assert twenty["mean_error"] < 0.06


def test_the_page_has_what_was_measured() -> None:
    """The goal of five and of twenty points per operator, as docs/prior.json records it."""
    document = json.loads((ROOT / "docs" / "prior.json").read_text(encoding="utf-8"))
    found = {(one["points"], one["way"]): one for one in document["found"]}
    five, twenty = found[5, "telling"], found[20, "telling"]
    assert round(five["median_error"], 2) <= 0.07
    assert five["mean_error"] <= 0.12
    assert twenty["median_error"] <= 0.05
    assert twenty["mean_error"] <= 0.08
    page = (ROOT / "docs" / "few-points.md").read_text(encoding="utf-8")
    assert f"| {100 * five['median_error']:.1f} % / {100 * five['mean_error']:.1f} % (" in page
    assert f"| {100 * twenty['median_error']:.1f} % / {100 * twenty['mean_error']:.1f} % (" in page
