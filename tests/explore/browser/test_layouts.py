"""Layouts: the table, the picture, sliders and switches, with mouse and keyboard."""

import re
from typing import Any

import pytest

from kernelcast.runtime import Estimator
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.models import load_model

Tab, Explorer = Any, Any  # of the conftest.py files, which cannot be imported

pytestmark = pytest.mark.browser

SMALL = "#model=llama-2-7b&gpus=8&batch=16&top=100"
FIXED = f"{SMALL}&layout=2.2.2.1.1.1.1.8.1f1b.1.false.none.1.even"


def test_a_row_is_shown_when_it_is_clicked(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + SMALL)
    row = tab.page.locator("#table tbody tr").nth(6)
    step = row.locator("td").nth(1).inner_text().removeprefix("◆ ")
    row.click()
    tab.settle()
    assert step in tab.text("#tiles")
    assert row.get_attribute("aria-selected") == "true"
    assert "number 7 above" in tab.text("#answer-note")


def test_the_table_by_keyboard(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + SMALL)
    tab.page.locator("#table table").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "Enter"):
        tab.page.keyboard.press(key)
    tab.settle()
    assert "number 2 above" in tab.text("#answer-note")
    tab.page.keyboard.press("End")
    tab.page.keyboard.press(" ")
    tab.settle()
    last = tab.page.locator("#table table").get_attribute("aria-rowcount")
    assert f"number {int(last) - 1} above" in tab.text("#answer-note")
    active = tab.page.locator("#table table").get_attribute("aria-activedescendant")
    assert tab.page.locator(f"#{active}").get_attribute("aria-selected") == "true"


def test_headings_sort(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + SMALL)
    heading = tab.page.locator("#table th", has_text="Memory")

    def sizes() -> list[float]:
        cells = tab.page.locator("#table tbody tr:not(.space) td:nth-child(3)").all_inner_texts()
        return [float(one.removesuffix(" GiB")) for one in cells]

    for direction in ("ascending", "descending"):
        heading.locator("button").click()
        assert heading.get_attribute("aria-sort") == direction
        assert sizes() == sorted(sizes(), reverse=direction == "descending")
    assert tab.page.locator("#table th[aria-sort]").count() == 1


def test_the_front_alone(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + SMALL)
    every = int(tab.page.locator("#table table").get_attribute("aria-rowcount"))
    tab.page.check("#front")
    assert int(tab.page.locator("#table table").get_attribute("aria-rowcount")) < every
    rows = tab.page.locator("#table tbody tr:not(.space)")
    assert rows.count() == rows.locator(".on-front").count() > 3


def test_the_picture_by_mouse_and_keyboard(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + SMALL)
    plot = tab.page.locator("#chart .plot")
    assert "Pareto front goes from" in plot.get_attribute("aria-label")
    plot.focus()
    for _ in range(4):
        tab.page.keyboard.press("ArrowRight")
    tip = tab.text("#chart .tip")
    tab.page.keyboard.press("Enter")
    tab.settle()
    step, memory = tip.split("\n")[0].split(", ")
    assert step in tab.text("#tiles")
    assert memory in tab.text("#tiles")
    assert tab.page.locator("#table tr[aria-selected=true] .on-front").count() == 1
    # The mouse finds the point again: the canvas has it at the ring that marks what is shown.
    box = tab.page.locator("#chart .u-over").bounding_box()
    for part in range(1, 40):
        tab.page.mouse.move(box["x"] + box["width"] * part / 40, box["y"] + box["height"] * 0.75)
        if tab.page.is_visible("#chart .tip"):
            break
    assert tab.page.is_visible("#chart .tip")
    tip = tab.text("#chart .tip").split("\n")[0].split(", ")
    tab.page.mouse.down()
    tab.page.mouse.up()
    tab.settle()
    assert tip[0] in tab.text("#tiles")


def test_a_slider_asks_for_its_layout(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + FIXED)
    assert tab.layout() == "tp 2 × pp 2 × dp 2 · 1F1B"
    tab.page.locator("#slider-tp").focus()
    tab.page.keyboard.press("ArrowRight")
    tab.settle()
    assert tab.layout() == "tp 4 × pp 2 × dp 1 · 1F1B"
    layout = Parallelism(pp=2, tp=4, dp=1, micro_batch=1, micro_batches=16)
    expected = Estimator.load("hardware:h100-sxm").predict(model=load_model("llama-2-7b"), parallelism=layout)
    shown = float(re.findall(r"Step\n([0-9.]+) ms", tab.text("#tiles"))[0])
    assert shown == pytest.approx(1e3 * expected.step_time_s, rel=1e-3)
    assert "layout=2.4.1.1.1.1.1.16.1f1b.1.false.none.1.even" in tab.page.url


def test_what_is_not_valid_is_said_and_not_asked_for(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + FIXED)
    slider = tab.page.locator("#slider-tp")
    slider.focus()
    tab.page.keyboard.press("End")  # tp 8 with pp 2 is more than there are
    tab.settle()
    assert tab.text("#slider-note") == "Tensor, tp 8: pp · tp · cp is 16, expected a divisor of the 8 devices"
    assert tab.layout() == "tp 2 × pp 2 × dp 2 · 1F1B"
    assert slider.get_attribute("aria-valuetext") == "2 of 1, 2, 4, 8; valid"
    stops = tab.page.locator(".slider", has_text="Tensor").locator(".stops span")
    assert [stops.nth(at).get_attribute("class") for at in range(4)] == ["fits", "fits", "fits", "none"]


def test_every_slider_and_switch(tab: Tab, explorer: Explorer) -> None:
    tab.open(
        f"{explorer.home}#model=mixtral-8x7b&gpus=16&batch=16&top=100&layout=2.2.4.1.1.1.1.4.1f1b.1.true.none.1.even"
    )
    for field, key, expected in (
        ("pp", "ArrowRight", "tp 2 × pp 4 × dp 2 · 1F1B"),
        ("dp", "ArrowLeft", "tp 2 × pp 8 × dp 1 · 1F1B"),
        ("dp", "ArrowRight", "tp 2 × pp 4 × dp 2 · 1F1B"),
        ("cp", "ArrowRight", "tp 2 × pp 4 × dp 1 × cp 2 · 1F1B"),
        ("ep", "ArrowRight", "tp 2 × pp 4 × dp 1 × cp 2, ep 2 · 1F1B"),
        ("expert_tp", "ArrowRight", "tp 2 × pp 4 × dp 1 × cp 2, ep 2, expert_tp 2 · 1F1B"),
    ):
        tab.page.locator(f"#slider-{field}").focus()
        tab.page.keyboard.press(key)
        tab.settle()
        assert tab.layout() == expected
    tab.page.locator("#slider-micro_batch").focus()
    tab.page.keyboard.press("ArrowRight")
    tab.settle()
    assert "8 micro-batches of 2" in tab.text("#answer-note")
    tab.page.select_option("#switch-schedule", "interleaved")
    tab.settle()
    assert tab.layout().endswith("interleaved × 2")
    tab.page.select_option("#switch-virtual_stages", "4")
    tab.settle()
    assert tab.layout().endswith("interleaved × 4")
    tab.page.select_option("#switch-recompute", "selective")
    tab.settle()
    tab.page.select_option("#switch-zero", "2")
    tab.settle()
    assert "recompute selective, ZeRO 2, sequence parallel" in tab.text("#answer-note")
    # With experts, a cut tensor means a cut sequence.
    assert tab.page.locator("#switch-sequence_parallel").is_disabled()


def test_sequence_parallelism(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + FIXED)
    tab.page.check("#switch-sequence_parallel")
    tab.settle()
    assert "sequence parallel" in tab.text("#answer-note")


def test_a_switch_that_does_not_go_is_refused(tab: Tab, explorer: Explorer) -> None:
    tab.expected = ("status of 422",)
    tab.open(
        f"{explorer.home}#model=llama-2-7b&gpus=8&batch=12&top=100&layout=8.1.1.1.1.1.1.12.1f1b.1.false.none.1.even"
    )
    tab.page.select_option("#switch-schedule", "interleaved")
    tab.settle()
    assert (
        tab.text("#problem") == "micro_batches is 12, expected a multiple of pp (8) with schedule interleaved"
    )
    assert tab.layout().endswith("1F1B")
    assert tab.page.input_value("#switch-schedule") == "1f1b"


def test_what_does_not_fit_is_marked(tab: Tab, explorer: Explorer) -> None:
    tab.open(
        f"{explorer.home}#model=llama-2-7b&gpus=8&batch=16&top=100&layout=1.1.8.1.1.1.1.2.1f1b.1.false.none.0.even"
    )
    tab.page.locator("#slider-micro_batch").focus()
    tab.page.keyboard.press("ArrowRight")
    tab.settle()
    assert tab.page.locator("#tiles .bad").count() == 1
    assert "does not fit" in tab.text("#tiles .bad")


def test_ten_thousand_layouts(tab: Tab, explorer: Explorer) -> None:
    tab.open(f"{explorer.home}#model=llama-2-7b&gpus=256&batch=2048&top=10000")
    count = int(tab.page.locator("#table table").get_attribute("aria-rowcount")) - 1
    assert count >= 10_000
    assert tab.text("#table-title") == f"Best {count:,} layouts"
    assert tab.page.locator("#table tbody tr").count() < 100  # the others are no elements
    rows = tab.page.locator("#table .rows")
    rows.evaluate("one => { one.scrollTop = one.scrollHeight; }")
    tab.page.locator("#table tbody tr td:first-child", has_text=re.compile(f"^{count}$")).wait_for()
    tab.page.locator("#table th button", has_text="MFU").click()
    tab.page.locator("#table table").focus()
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press("Enter")
    tab.settle()
    assert f"number {count} above" in tab.text("#answer-note")
