"""Collectives of described fabrics against published rows held out from the prediction."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelcast.cli.validate_data import fabrics
from kernelcast.runtime.errors import DataError
from kernelcast.validate.fabrics import A100_SOURCES, Across, FabricValidation, Size, validate_fabrics

TEXT = Path(__file__).with_name("whole_fabrics.txt")
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
FOLDERS = ("vtrain", "vidur", "aiconfigurator", "nccl-tests")
pytestmark = pytest.mark.skipif(
    not all((DATA / folder).is_dir() for folder in FOLDERS), reason="no published rows in ../shared/data"
)


@pytest.fixture(scope="module")
def found() -> FabricValidation:
    """The three checks."""
    return validate_fabrics(DATA)


def test_described_nodes_are_within_15_percent(found: FabricValidation) -> None:
    assert {one.source for one in found.described} == set(A100_SOURCES)
    assert all(one.median_error <= 0.15 for one in found.described)


def test_eight_devices_from_two_and_four_are_within_10_percent(found: FabricValidation) -> None:
    assert {one.source for one in found.extended} == set(A100_SOURCES)
    assert all(one.median_error <= 0.10 for one in found.extended)


def test_ten_nodes_of_eight_are_within_20_percent(found: FabricValidation) -> None:
    assert [one.operator for one in found.across] == [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
    ]
    for one in found.across:
        assert one.median_error <= 0.20, one.operator
        assert len(one.sizes) == 10


def test_whole_validation(found: FabricValidation) -> None:
    """Every figure to four digits: `whole_fabrics.txt`, which WRITE_WHOLE_FABRICS=1 pytest THIS_FILE writes."""
    document = json.dumps(found.to_dict()).replace("{", "\n{")
    printed = re.sub(r"-?\d+\.\d+(e[-+]?\d+)?", lambda number: f"{float(number[0]):.4g}", document) + "\n"
    if "WRITE_WHOLE_FABRICS" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")


def test_both_levels_predict_better_than_the_slower_one(found: FabricValidation) -> None:
    for one in found.across[:3]:  # an all-to-all has but one level that matters
        assert all(abs(size.error) < abs(size.slower_level_us / size.measured_us - 1) for size in one.sizes)


def test_one_median_above_its_limit_is_a_failure(found: FabricValidation) -> None:
    assert found.holds
    for name, limit in (("described", 0.15), ("extended", 0.1)):
        first, *others = getattr(found, name)
        for error, holds in ((limit, True), (limit + 1e-9, False)):
            assert replace(found, **{name: (*others, replace(first, median_error=error))}).holds is holds
    # Of a collective across nodes, only sizes from 256 MiB count.
    sizes = [
        Size(message_bytes=mib << 20, measured_us=10.0, predicted_us=us, slower_level_us=1.0)
        for mib, us in ((255, 90.0), (256, 12.0), (512, 8.0))
    ]
    across = Across(operator="all_reduce", sizes=tuple(sizes))
    assert across.median_error == pytest.approx(0.2)
    for us, holds in ((11.9, True), (12.2, False)):
        other = replace(across, sizes=(sizes[0], replace(sizes[1], predicted_us=us)))
        assert replace(found, across=(*found.across, other)).holds is holds


def test_command_prints_every_size(found: FabricValidation) -> None:
    printed = CliRunner().invoke(fabrics, [str(DATA)], catch_exceptions=False)
    assert printed.exit_code == 0
    assert printed.output.count("16,384 MiB") == 4
    as_json = CliRunner().invoke(fabrics, [str(DATA), "--json"], catch_exceptions=False)
    assert json.loads(as_json.output) == found.to_dict()


def test_a_folder_without_rows_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no vtrain/a100/AR_GPU\*.csv in it"):
        validate_fabrics(tmp_path)


def test_what_is_no_parquet_file_is_named(tmp_path: Path) -> None:
    for folder in ("vtrain", "vidur"):
        shutil.copytree(DATA / folder, tmp_path / folder)
    table = tmp_path / "aiconfigurator" / "a100_sxm" / "comm" / "nccl" / "1" / "nccl_perf.parquet"
    table.parent.mkdir(parents=True)
    table.write_text("nothing")
    with pytest.raises(DataError, match=r"nccl_perf\.parquet: is not a Parquet file"):
        validate_fabrics(tmp_path)
