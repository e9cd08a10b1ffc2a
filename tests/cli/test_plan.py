"""`kernelcast plan`: its forms, its picture, sizes side by side, facts of one's own, and refusals."""

import itertools
import json
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from tests.cli.printed import printed

RUN = (
    "plan", "--hardware", "h100-sxm", "--model", "llama-3-8b", "--dp", 64, "--micro-batch", 1,
    "--global-batch", 512, "--tokens", "1T",
)  # fmt: skip


def test_text_says_days_failures_and_what_would_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, *RUN, "--price", 2, "--walltime-limit", "48h", "--queue", "2h")
    for words in (
        "on the calendar",
        "published sites",
        "Where the time goes",
        "queue",
        "halving each cause alone",
        "cost",
    ):
        assert words in text


def test_json_is_the_form_that_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, *RUN, "--json", "--failure-rate", 5))
    assert found["format"] == "kernelcast.run-plan/1"
    assert found["failures"]["per_1000_node_days"] == 5
    again = json.loads(printed(capsys, RUN[0], "run", *RUN[1:], "--json", "--failure-rate", 5))
    assert again == found


def test_sizes_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "plan",
        "--hardware",
        "h100-sxm",
        "--model",
        "llama-3-8b",
        "--tokens",
        "1T",
        "--global-batch",
        64,
    )
    found = json.loads(printed(capsys, *words, "--gpus", "8,16", "--json"))
    assert [one["gpus"] for one in found["plans"]] == [8, 16]
    assert found["plans"][0]["days"]["p50"] > found["plans"][1]["days"]["p50"]
    short = printed(capsys, *words[:5], "--samples", "60k", *words[-2:], "--gpus", "8,16")
    assert "min 50 %" in short
    assert "0.0" not in short.splitlines()[2].split()[2:5]


@pytest.mark.parametrize("name", ["plan.png", "plan.svg"])
def test_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert "--picture" not in printed(capsys, *RUN, "--picture", path)
    assert "--picture plan.svg" in printed(capsys, *RUN)
    begin = path.read_bytes()[:8]
    assert begin == b"\x89PNG\r\n\x1a\n" if name.endswith("png") else begin.startswith(b"<?xml")


def test_the_picture_marks_the_interval_with_the_fewest_days(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    printed(capsys, *RUN, "--picture", tmp_path / "plan.svg")
    calendar, fan, interval = figures[0].axes
    curve, marked = interval.lines
    minutes, days = map(list, curve.get_data())
    assert marked.get_xdata()[0] == pytest.approx(minutes[days.index(min(days))])  # type: ignore[index]
    ends = [bar.get_x() + bar.get_width() for bar in calendar.patches]  # type: ignore[attr-defined]
    assert calendar.get_xlim() == pytest.approx((0, max(ends)))
    assert fan.lines[0].get_xdata()[-1] == pytest.approx(max(ends), rel=0.1)  # type: ignore[index]
    # What each part says of itself: bars follow each other and are as long as their legends say.
    assert figures[0].get_suptitle() == "llama-3-8b on 64 GPUs, pp 1 × tp 1 × dp 64"
    legends = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figures[0].axes]
    assert [float(text.rpartition(" ")[2]) for text in legends[0]] == pytest.approx(
        [bar.get_width() for bar in calendar.patches],
        abs=0.051,  # type: ignore[attr-defined]
    )
    assert [bar.get_x() for bar in calendar.patches] == pytest.approx([0, *ends[:-1]])  # type: ignore[attr-defined]
    assert legends[0][0].startswith("steps ")
    assert all(bar.get_width() >= 0.001 * max(ends) for bar in calendar.patches)  # type: ignore[attr-defined]
    assert legends[1] == ["90 % of runs", "50 %", "median"]
    assert re.fullmatch(r"every [\d,]+ steps", legends[2][0])
    assert [axes.get_xlabel() for axes in figures[0].axes] == [
        "days on the calendar, on average", "days", "minutes between checkpoints",
    ]  # fmt: skip
    assert [axes.get_ylabel() for axes in figures[0].axes] == ["", "tokens, 10¹²", "days on average"]
    assert (fan.get_xlim()[0], fan.get_ylim()[0], interval.get_xscale()) == (0, 0, "log")
    assert fan.lines[0].get_ydata()[-1] == pytest.approx(1.0000017, abs=2e-7)  # type: ignore[index]
    widths = [
        bounds.x1 - bounds.x0 for bounds in (area.get_datalim(fan.transData) for area in fan.collections)
    ]
    assert widths[0] > widths[1] > 0
    assert [text.get_visible() for text in calendar.get_yticklabels()] == []
    hidden = [name for name, spine in calendar.spines.items() if not spine.get_visible()]
    assert sorted(hidden) == ["left", "right", "top"]


def test_own_failures_and_steps_change_the_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log, steps, database = tmp_path / "jobs.csv", tmp_path / "result.txt", tmp_path / "site.db"
    days = [f"2026-01-{day:02}" for day in range(1, 21)]
    log.write_text(
        "start,end,nodes,outcome\n"
        + "".join(
            f"{one},{other},50,{'failed' if other.endswith('5') else 'ok'}\n"
            for one, other in itertools.pairwise(days)
        )
    )
    event = ':::MLLOG {{"time_ms": {}, "key": "tracked_stats", "value": {{"train_step_time": {}}}}}\n'
    steps.write_text("".join(event.format(number, 2.0 if number % 10 == 9 else 1.0) for number in range(105)))
    text = printed(capsys, "plan", "fit-failures", log, "--db", database)
    assert "19 in 950.0 node-days, 0 could not be read" in text
    assert "1 log added" in text
    printed(capsys, "import", "mlperf", steps, "--db", database, "--gpus", 64)
    own = json.loads(printed(capsys, *RUN, "--json", "--db", database))
    usual = json.loads(printed(capsys, *RUN, "--json"))
    assert own["failures"]["per_1000_node_days"] < usual["failures"]["per_1000_node_days"]
    assert "2 failures in 950 node-days (csv)" in own["failures"]["origin"]
    assert own["step"]["mean_s"] == pytest.approx(1.1 * own["step"]["p50_s"])
