"""Figures of scored steps, by hand; pictures of them."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.docs.scoreboard_tables import best_constant, coverage, half_width, interval_score, mean_abs
from kernelcast.runtime import DataError, UsageError
from kernelcast.validate.scoreboard import COLUMNS, Panel, Point, Source, draw, sources_of

POINT = Point(
    label="small (1-1-1)",
    measured_s=2.0,
    predicted_s=2.2,
    interval_s=(1.0, 4.0),
    devices=8,
    tokens=2048,
    layout="dp alone",
    hardware="a100-sxm",
    is_steady=True,
    published_error=None,
)
MISSED = replace(POINT, measured_s=8.0, predicted_s=2.0)
SOURCE = Source(
    site="One", runs_file="one.toml", asked="a100-sxm", fabric="f", is_own=False, points=(POINT,) * 3
)
OTHER = replace(SOURCE, site="Other", is_own=True, points=(MISSED,))


def test_an_interval_scores_by_its_width_and_by_what_it_misses() -> None:
    assert POINT.interval_score == pytest.approx(math.log(4))
    assert MISSED.interval_score == pytest.approx(math.log(4) + 20 * math.log(2))
    assert POINT.half_width == pytest.approx(1.5 / 2.2)
    assert (POINT.is_inside, MISSED.is_inside) == (True, False)


def test_every_source_weighs_the_same() -> None:
    assert coverage([SOURCE, OTHER]) == 0.5
    assert half_width([SOURCE, OTHER]) == pytest.approx((1.5 / 2.2 + 1.5 / 2.0) / 2)
    assert interval_score([SOURCE, OTHER]) == pytest.approx(math.log(4) + 10 * math.log(2))
    assert mean_abs([POINT, MISSED]) == pytest.approx((0.1 + 0.75) / 2)


def test_the_best_constant_just_holds_what_it_pays_to_hold() -> None:
    # 2.2 predicted, 2 measured: a factor of 1.1 up and down is the narrowest that holds it.
    score, share = best_constant([SOURCE])
    assert share == pytest.approx(0.10, abs=0.011)
    assert score == pytest.approx(2 * math.log(1 + share), abs=0.01)


def test_a_document_s_steps_become_points_without_those_that_were_not_predicted() -> None:
    step = {
        "label": "a", "measured_s": 1.0, "predicted_s": 1.5, "interval_s": [1.0, 2.0], "sequence_length": 512,
        "pp": 2, "tp": 4, "dp": 3, "is_steady": True, "published_error": -0.1,
    }  # fmt: skip
    steps = [step, {**step, "predicted_s": None, "interval_s": None}]
    files = [
        {"site": "S", "runs_file": "s.toml", "asked": "h", "fabric": "f", "is_shipped": False, "steps": steps}
    ]
    [source] = sources_of({"files": files})
    assert source.is_own
    [point] = source.points
    assert (point.devices, point.layout, point.hardware, point.error) == (24, "pp × tp", "h", 0.5)


@pytest.mark.slow
def test_pictures_of_every_kind_in_the_named_format(tmp_path: Path) -> None:
    panels = [Panel(title=column, column=column, sources=[SOURCE, OTHER]) for column in COLUMNS]
    draw(tmp_path / "a.png", [panels])
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    draw(tmp_path / "a.svg", [panels])
    # The same steps give the same bytes.
    draw(tmp_path / "b.svg", [panels])
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    with pytest.raises(UsageError, match=r"a\.txt: "):
        draw(tmp_path / "a.txt", [panels])
    with pytest.raises(DataError, match=r"a\.png: cannot be written"):
        draw(tmp_path / "nowhere" / "a.png", [panels])
