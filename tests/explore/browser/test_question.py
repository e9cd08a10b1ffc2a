"""Every control of the question changes the answer, and the address."""

from typing import Any

import pytest

Tab, Explorer = Any, Any  # of the conftest.py files, which cannot be imported

pytestmark = pytest.mark.browser

SMALL = "#model=llama-2-7b&gpus=8&batch=16&top=100"


def step(tab: Tab) -> str:
    return str(tab.page.locator("#tiles div").first.inner_text())


def tile(tab: Tab, name: str) -> str:
    return str(tab.page.locator("#tiles div").filter(has_text=name).inner_text())


def test_an_answer_at_once(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home)
    assert "layouts looked at" in tab.text("#status")
    assert "90 % interval" in step(tab)
    for place in (
        "#breakdown .shares",
        "#timeline svg",
        "#memory svg",
        "#warnings li",
        "#chart canvas",
        "#table tbody tr",
    ):
        assert tab.page.locator(place).count() > 0, place
    # The first row is the one that is shown.
    chosen = tab.page.locator("#table tr[aria-selected=true]")
    assert chosen.count() == 1
    assert step(tab).split("\n")[1] in chosen.inner_text()


@pytest.mark.parametrize(
    ("control", "value"),
    [
        ("hardware", "mi300x"), ("fabric", "pcie5-800g"), ("model", "gpt-20b"), ("recompute", "full"),
        ("attention", "unfused"), ("kernel", "flash-2"), ("stack", "megatron-core"), ("schedule", "gpipe"),
        ("zero", "0"), ("framework", "torchtitan"), ("fp8", "rowwise"), ("optimizer", "8bit"),
    ],
)  # fmt: skip
def test_choices_change_the_answer(tab: Tab, explorer: Explorer, control: str, value: str) -> None:
    tab.open(explorer.home + SMALL)
    before = tab.text("#answer")
    tab.page.select_option(f"#{control}", value)
    tab.settle()
    assert f"{control}={value}" in tab.page.url
    assert tab.page.input_value(f"#{control}") == value
    assert tab.text("#answer") != before


def test_a_framework_s_arguments(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + SMALL)
    assert not tab.page.is_visible("#launch")
    tab.page.select_option("#framework", "nemo")
    tab.settle()
    tab.page.click("#launch")
    assert tab.text("#dialog-title") == "Arguments of NeMo"
    assert "tensor_model_parallel_size: " in tab.text("#dialog-body")


def test_at_1360_px_every_choice_is_readable_and_messages_stay_in_sight(tab: Tab, explorer: Explorer) -> None:
    tab.page.set_viewport_size({"width": 1360, "height": 900})
    tab.open(explorer.home + SMALL)
    cut = tab.page.evaluate(
        """() => [...document.querySelectorAll("select")].filter((one) => one.offsetParent).filter((one) => {
          const style = getComputedStyle(one), pen = document.createElement("canvas").getContext("2d");
          pen.font = style.font;
          const room = one.clientWidth - 2 * parseFloat(style.paddingLeft) - 18;
          return pen.measureText(one.selectedOptions[0].text).width > room;
        }).map((one) => one.id)"""
    )
    assert cut == []
    rows = tab.page.locator("#table .rows")
    assert rows.evaluate("(one) => one.scrollWidth <= one.clientWidth")
    tab.page.locator("#tokens").scroll_into_view_if_needed()
    tab.page.fill("#lora", "many")
    tab.page.keyboard.press("Tab")
    tab.page.locator("#problem:not([hidden])").wait_for()
    box = tab.page.locator("#problem").bounding_box()
    assert box is not None
    assert 0 <= box["y"] <= 900 - box["height"]


@pytest.mark.parametrize(
    ("control", "value"), [("gpus", "16"), ("batch", "32"), ("sequence", "2048"), ("lora", "16")]
)
def test_numbers_change_the_answer(tab: Tab, explorer: Explorer, control: str, value: str) -> None:
    tab.open(explorer.home + SMALL)
    before = step(tab)
    tab.page.fill(f"#{control}", value)
    tab.page.press(f"#{control}", "Enter")
    tab.settle()
    assert step(tab) != before
    assert f"{control}={value}" in tab.page.url


def test_an_objective_with_a_reference_model(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + SMALL)
    usual = step(tab)
    tab.page.select_option("#objective", "dpo")
    tab.settle()
    assert step(tab) != usual
    assert "objective=dpo" in tab.page.url
    assert "no step of DPO was compared; 90 % interval" in " ".join(tab.page.inner_text("body").split())


def test_frozen_weights_of_adapters(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + SMALL + "&lora=16")
    usual = step(tab)
    tab.page.select_option("#frozen", "nf4")
    tab.settle()
    assert step(tab) != usual
    assert "frozen=nf4" in tab.page.url
    # Weights are frozen with adapters alone.
    tab.expected = ("status of 422",)
    tab.page.fill("#lora", "")
    tab.page.press("#lora", "Enter")
    tab.page.locator("#problem:not([hidden])").wait_for()
    assert "frozen_weights" in tab.text("#problem")


def test_what_if(tab: Tab, explorer: Explorer) -> None:
    tab.open(
        explorer.home
        + "#model=llama-2-7b&gpus=16&batch=16&top=100&layout=1.1.16.1.1.1.1.1.1f1b.1.false.none.1.even"
    )
    usual, layout = step(tab), tab.layout()
    tab.page.locator("#network").focus()
    for _ in range(3):
        tab.page.keyboard.press("ArrowLeft")
    tab.settle()
    assert step(tab) != usual
    assert tab.text("#network-value") == "× 1/8"
    assert tab.text("#network-note") == "50 Gbit/s per GPU between nodes"
    assert tab.layout() == layout  # what-ifs keep the layout
    tab.settle()
    tab.expected = ("status of 422",)  # its nodes are not connected
    tab.page.select_option("#fabric", "h100-nvswitch")
    tab.settle()
    assert tab.page.locator("#network").is_disabled()
    assert "measured, or within one node" in tab.text("#network-note")


def test_price_and_tokens(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + SMALL)
    tab.page.fill("#tokens", "1B")
    tab.page.press("#tokens", "Enter")
    hours = float(
        tile(tab, "Training on 1 B tokens").split("\n")[-1].partition(" GPU hours, ")[0].replace(",", "")
    )
    rate = float(tile(tab, "Tokens per second").split("\n")[1].replace(",", ""))
    assert hours == pytest.approx(8 * 1e9 / rate / 3600, abs=0.6)
    tab.page.fill("#price", "4")
    tab.page.press("#price", "Enter")
    assert float(tile(tab, "Price").split("\n")[1].replace(",", "")) == pytest.approx(4 * hours, rel=0.02)
    tab.page.fill("#tokens", "many")
    tab.page.press("#tokens", "Enter")
    assert tab.text("#problem") == "tokens is 'many', expected a number such as 300B or 15T"
    assert tab.page.get_attribute("#tokens", "aria-invalid") == "true"
    tab.page.fill("#tokens", "")
    tab.page.press("#tokens", "Enter")
    assert tab.page.locator("#tiles div").filter(has_text="Training on").count() == 0


def test_an_answer_does_not_replace_what_is_being_written(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + SMALL)
    tab.page.fill("#sequence", "1024")
    tab.page.press("#sequence", "Enter")
    tab.page.fill("#gpus", "16")
    tab.settle()
    assert tab.page.input_value("#gpus") == "16"
    tab.page.press("#gpus", "Enter")
    tab.settle()
    assert "gpus=16" in tab.page.url


def test_starting_over(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + SMALL)
    tab.page.click("#reset")
    tab.settle()
    assert tab.page.url == explorer.home
    assert tab.page.input_value("#model") == "llama-3.1-70b"


def test_wrong_numbers_are_said(tab: Tab, explorer: Explorer) -> None:
    tab.expected = ("status of 422",)
    tab.open(explorer.home + SMALL)
    for value in ("0", "x", "99999999999"):
        tab.page.fill("#gpus", value)
        tab.page.press("#gpus", "Enter")
        tab.settle()
        assert tab.text("#problem") == f"GPUs is '{value}', expected a whole number from 1"
        assert tab.text("#status") == "Shown is the answer to the question before."
        assert tab.page.locator("#answer.stale").count() == 1
    tab.page.fill("#gpus", "1")  # too few for the model
    tab.page.press("#gpus", "Enter")
    tab.settle()
    assert "does not fit" in tab.text("#problem") or "fits into" in tab.text("#problem")
    assert tab.text("#table-title") == "No layout fits"
    assert not tab.page.is_visible("#answer")  # it answered another question
    tab.page.fill("#sequence", "7")
    tab.page.press("#sequence", "Enter")
    tab.settle()
    tab.page.fill("#sequence", "")
    tab.page.press("#sequence", "Enter")
    tab.page.fill("#gpus", "8")
    tab.page.press("#gpus", "Enter")
    tab.settle()
    assert not tab.page.is_visible("#problem")
    assert tab.page.locator(".stale").count() == 0
