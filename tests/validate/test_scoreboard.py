"""Figures of scored steps, by hand; pictures of them."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from kernelcast.docs.scoreboard_tables import (
    best_constant,
    coverage,
    half_width,
    interval_score,
    is_inside,
    mean_abs,
    score,
    width,
)
from kernelcast.runtime import DataError, UsageError
from kernelcast.validate.scoreboard import (
    COLUMNS,
    Panel,
    Point,
    Source,
    _errors,
    _short,
    _styles,
    _times,
    draw,
    sources_of,
)
from tests.drawn import of_axes, short

TEXT = Path(__file__).with_name("whole_pictures.txt")

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
    assert score(POINT) == pytest.approx(math.log(4))
    assert score(MISSED) == pytest.approx(math.log(4) + 20 * math.log(2))
    assert width(POINT) / 2 == pytest.approx(1.5 / 2.2)
    assert (is_inside(POINT), is_inside(MISSED)) == (True, False)


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


def panels_of(*columns: str, sources: Sequence[Source] = (SOURCE, OTHER)) -> list[Panel]:
    return [Panel(title=column, column=column, sources=sources) for column in columns]


def drawn(panel: Panel) -> Any:
    """The axes of a panel, which nothing is written of."""
    axes = Figure().subplots()
    (_times if panel.column == "times" else _errors)(axes, panel)
    return axes


def test_times_are_drawn_with_intervals_between_ends_beyond_all() -> None:
    axes = drawn(*panels_of("times"))
    diagonal, *_ = lines = axes.lines
    # 2 to 8 s, and a fifth more.
    assert tuple(diagonal.get_xdata()) == tuple(diagonal.get_ydata()) == axes.get_xlim() == axes.get_ylim()
    assert axes.get_xlim() == pytest.approx((2 / 1.2, 8 * 1.2))
    one, other = (line for line in lines if line.get_label() in ("One", "Other"))
    assert (list(one.get_xdata()), list(one.get_ydata())) == ([2.0] * 3, [2.2] * 3)
    assert (list(other.get_xdata()), list(other.get_ydata())) == ([8.0], [2.0])
    assert (other.get_color(), other.get_marker()) == ("#000000", "*")
    [band, bars, _] = axes.collections
    assert bars.get_segments()[0] == pytest.approx(np.array([[2.0, 1.0], [2.0, 4.0]]))
    corners = band.get_paths()[0].vertices
    assert {round(y / x, 6) for x, y in corners} == {0.9, 1.1}
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_aspect()) == ("log", "log", 1.0)


@pytest.mark.parametrize(
    ("column", "at", "ticks"),
    [
        # Two sources stand a quarter of a place to either side, of numbers as powers of two.
        ("devices", (8 * 2**-0.125, 64 * 2**0.125), ["8", "64"]),
        ("tokens", (2048 * 2**-0.125, 1000 * 2**0.125), ["1000", "2k"]),
        ("layout", (-0.125, 1.125), ["dp alone", "pp"]),
    ],
)
def test_errors_are_drawn_beside_each_other(column: str, at: tuple[float, float], ticks: list[str]) -> None:
    far = replace(OTHER, points=(replace(MISSED, devices=64, tokens=1000, layout="pp"),))
    axes = drawn(*panels_of(column, sources=(SOURCE, far)))
    one, other = (line for line in axes.lines if line.get_label() in ("One", "Other"))
    assert (one.get_xdata()[0], other.get_xdata()[0]) == pytest.approx(at)
    assert (one.get_ydata()[0], other.get_ydata()[0]) == pytest.approx((10, -75))
    assert [text.get_text() for text in axes.get_xticklabels()] == ticks
    [none] = (line for line in axes.lines if line.get_label().startswith("_"))
    assert list(none.get_ydata()) == [0, 0]
    assert axes.patches[0].get_bbox().intervaly.tolist() == [-10, 10]
    if column == "layout":
        assert axes.get_xlim() == pytest.approx((-0.6, 1.6))
        alone = drawn(*panels_of(column, sources=(SOURCE,)))
        assert alone.lines[0].get_xdata()[0] == 0  # one source stands in the middle


def test_sources_differ_in_colour_or_mark_and_ones_own_stands_out() -> None:
    foreign = [replace(SOURCE, site=f"{place}") for place in range(8)]
    styles = [style for _, style in _styles([OTHER, *foreign])]
    assert styles[0]["marker"] == "*"
    assert len({(style["color"], style["marker"]) for style in styles[:-1]}) == 8
    assert {**styles[1]} == styles[8]  # the eighth begins again
    assert (
        len({style["color"] for style in styles[1:8]}) == len({style["marker"] for style in styles[1:8]}) == 7
    )


@pytest.mark.parametrize(("tokens", "text"), [(1023, "1023"), (1024, "1k"), (1536, "1536"), (2048, "2k")])
def test_round_numbers_of_tokens_are_short(tokens: int, text: str) -> None:
    assert _short(tokens) == text


def of_picture(figure: Figure, options: dict[str, Any], space: dict[str, Any]) -> Iterator[str]:
    yield f"size {short(figure.get_size_inches())} dots {figure.dpi:g} saved {options} space {short(space['rect'])}"
    for axes in figure.axes:
        yield from list(of_axes(axes))[1:]  # where they stand depends on fonts
        labels = [axis.get_majorticklabels()[0] for axis in (axes.xaxis, axes.yaxis)]
        looks = [f"{one.get_fontsize():g} {one.get_rotation():g} {one.get_ha()}" for one in labels]
        grid = axes.xaxis.get_gridlines()[0]
        yield f"  title {axes.get_title()!r} {axes.title.get_fontsize():g} labels {looks} grid {grid.get_alpha()}"
        yield f"  order and edges {[(line.zorder, line.get_markeredgewidth()) for line in axes.lines]}"
        yield from (
            f"  span {short(one.get_xy())} {one.get_alpha()} {one.get_zorder()}" for one in axes.patches
        )
    [legend] = figure.legends
    names, size = [one.get_text() for one in legend.get_texts()], legend.get_texts()[0].get_fontsize()
    yield f"legend {names} {legend._loc} {legend._ncols} {legend.get_frame_on()} {size:g}"


def test_whole_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that stands in pictures: `whole_pictures.txt`, which WRITE_WHOLE_PICTURES=1 pytest THIS_FILE writes."""
    spaces: list[dict[str, Any]] = []
    lines: list[str] = []
    monkeypatch.setattr(Figure, "tight_layout", lambda self, **space: spaces.append(space))
    monkeypatch.setattr(
        Figure, "savefig", lambda self, path, **options: lines.extend(of_picture(self, options, spaces[-1]))
    )
    sources = [
        replace(
            SOURCE, site=f"site {n}", is_own=n == 3,
            points=(replace(POINT, measured_s=1.0 + n, devices=2**n, layout=f"layout {n % 3}"), MISSED),
        )
        for n in range(8)
    ]  # fmt: skip
    draw(tmp_path / "a.svg", [panels_of(*COLUMNS[:2]), panels_of(*COLUMNS[3:])], panel_width=3.0)
    draw(tmp_path / "a.png", [panels_of("times", "devices", "tokens", sources=sources)])
    if "WRITE_WHOLE_PICTURES" in os.environ:
        TEXT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == TEXT.read_text(encoding="utf-8").splitlines()


@pytest.mark.slow
def test_pictures_of_every_kind_in_the_named_format(tmp_path: Path) -> None:
    panels = panels_of(*COLUMNS)
    draw(tmp_path / "a.png", [panels])
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    draw(tmp_path / "a.svg", [panels])
    # The same steps give the same bytes.
    draw(tmp_path / "b.svg", [panels])
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_picture_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Figure, "tight_layout", lambda self, **space: None)
    panels = panels_of("layout")
    with pytest.raises(UsageError, match=r"a\.txt: Format 'txt' is not supported"):
        draw(tmp_path / "a.txt", [panels])
    with pytest.raises(DataError, match=r"a\.svg: cannot be written \(No such file or directory\)$"):
        draw(tmp_path / "nowhere" / "a.svg", [panels])
