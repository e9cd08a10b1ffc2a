"""Bad files, a lost server, small screens, the dark, and those who do not see."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Tab, Explorer, Explore = Any, Any, Callable[..., Any]  # of the conftest.py files, which cannot be imported

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parent.parent.parent.parent
SMALL = "#model=llama-2-7b&gpus=8&batch=16&top=100"
CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 2048,
    "hidden_act": "silu", "rms_norm_eps": 1e-5,
}  # fmt: skip


def opened(tab: Tab, content: bytes, name: str = "config.json") -> None:
    tab.page.set_input_files(
        "#config", files=[{"name": name, "mimeType": "application/json", "buffer": content}]
    )


def test_a_config_of_the_user_s(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + SMALL)
    opened(tab, json.dumps(CONFIG).encode(), "tiny.json")
    tab.page.locator("#model-note", has_text="1.1 B parameters, 22 layers").wait_for()
    tab.settle()
    assert tab.page.locator("#model option:checked").inner_text() == "tiny (opened)"
    answer = tab.text("#tiles")
    tab.open(tab.page.url)  # its fields are in the address
    assert tab.text("#tiles") == answer
    tab.page.select_option("#attention", "unfused")
    tab.settle()
    assert tab.text("#tiles") != answer
    tab.page.select_option("#model", "llama-2-7b")
    tab.settle()
    assert "config=" not in tab.page.url


def test_a_config_that_is_dropped(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + SMALL)
    data = tab.page.evaluate_handle(
        """content => { const data = new DataTransfer();
        data.items.add(new File([content], "mine.json", {type: "application/json"})); return data; }""",
        json.dumps(CONFIG),
    )
    tab.page.dispatch_event("#drop", "drop", {"dataTransfer": data})
    tab.page.locator("#model-note", has_text="22 layers").wait_for()
    tab.settle()
    assert tab.page.locator("#model option:checked").inner_text() == "mine (opened)"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{nope", "bad.json is not JSON, expected a model's config.json"),
        (b"[1]", "bad.json holds no JSON object"),
        (b"", "bad.json is not JSON"),
        (b'{"model_type": "t5"}', "model file model: model_type is 't5'"),
        (b'{"model_type": "llama", "hidden_size": -1}', "model file model: "),
        (b'{"hidden_size": 8}', "model: field "),
        (b'{"model_type": "<img src=x onerror=alert(1)>"}', "model file model: model_type is '<img src=x"),
        (b" " * ((1 << 20) + 1), "bad.json has 1048577 bytes, expected a config.json of at most 1048576"),
    ],
)
def test_a_bad_file_is_said_and_changes_nothing(
    tab: Tab, explorer: Explorer, content: bytes, expected: str
) -> None:
    tab.expected = ("status of 422",)
    tab.open(explorer.home + SMALL)
    answer, address = tab.text("#answer"), tab.page.url
    opened(tab, content, "bad.json")
    tab.page.locator("#problem:not([hidden])").wait_for()
    assert tab.text("#problem").startswith(expected)
    assert (tab.text("#answer"), tab.page.url) == (answer, address)


def test_a_lost_server_comes_back(tab: Tab, explore: Explore) -> None:
    tab.expected = (
        "ERR_CONNECTION_REFUSED",
        "ERR_CONNECTION_RESET",
        "ERR_EMPTY_RESPONSE",
        "ERR_CONNECTION_CLOSED",
    )
    explorer = explore()
    tab.open(explorer.home + SMALL)
    explorer.stop()
    tab.page.select_option("#hardware", "a100-sxm")
    tab.page.locator("#lost:not([hidden])").wait_for()
    assert f"kernelcast explore --port {explorer.port}" in tab.text("#lost")
    explore(port=explorer.port)
    tab.page.locator("#lost").wait_for(state="hidden")
    tab.settle()
    assert "A100" in tab.text("#answer-note")


def test_a_database_s_page_sorts(tab: Tab, explore: Explore) -> None:
    explorer = explore(ROOT / "tests" / "data" / "small.db")
    tab.page.goto(explorer.address)
    heading = tab.page.locator("table", has_text="over quiet").locator("th", has_text="samples")
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    tab.page.click("nav >> text=Layouts")
    tab.settle()
    assert tab.page.locator("#nav a[aria-current=page]").inner_text() == "Layouts"
    tab.page.click("#nav >> text=Database")
    tab.page.wait_for_selector("h1 >> text=small.db")


@pytest.mark.parametrize("width", [320, 400, 800, 1400])
def test_no_width_scrolls_sideways(tab: Tab, explorer: Explorer, width: int) -> None:
    tab.page.set_viewport_size({"width": width, "height": 800})
    tab.open(explorer.home + SMALL)
    assert tab.page.evaluate("() => document.documentElement.scrollWidth") <= width


def test_light_and_dark(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + SMALL)
    seen = {}
    for scheme in ("light", "dark"):
        tab.page.emulate_media(color_scheme=scheme)
        colours = (
            "one => { const style = getComputedStyle(one); return [style.color, style.backgroundColor]; }"
        )
        ink, page = tab.page.locator("body").evaluate(colours)
        seen[scheme] = [
            sum(map(int, text.removeprefix("rgb(").removesuffix(")").split(","))) for text in (ink, page)
        ]
    assert seen["light"][0] < 300 < 600 < seen["light"][1]
    assert seen["dark"][0] > 600 > 300 > seen["dark"][1]


def test_every_control_has_a_name_and_is_reached_by_tab(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + SMALL)
    unnamed = tab.page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, a, [tabindex], summary")].filter((one) => {
            const text = one.getAttribute("aria-label") || one.labels?.[0]?.textContent || one.textContent;
            return !text.trim() && !one.getAttribute("aria-labelledby");
        }).map((one) => one.outerHTML.slice(0, 80))"""
    )
    assert unnamed == []
    reached = set()
    for _ in range(80):
        tab.page.keyboard.press("Tab")
        reached.add(tab.page.evaluate("() => document.activeElement.id"))
    expected = (
        "hardware fabric gpus model config batch sequence recompute schedule zero top network attention kernel stack "
        "framework fp8 lora frozen objective optimizer "
        "price tokens reset share front pin download-json sbatch slider-tp slider-pp slider-dp slider-cp "
        "slider-micro_batch switch-recompute"
    )
    assert set(expected.split()) <= reached
    # What screen readers are told when an answer changes.
    assert tab.page.locator("#status").get_attribute("role") == "status"
    assert tab.page.locator("#problem").get_attribute("role") == "alert"
    for picture in tab.page.locator("#timeline svg, #memory svg").all():
        assert picture.get_attribute("role") == "img"
        assert picture.get_attribute("aria-labelledby")


def test_a_bundle_of_the_user_s(tab: Tab, explore: Explore, make_bundle: Callable[..., Path]) -> None:
    explorer = explore("--bundle", make_bundle())
    tab.open(explorer.home + SMALL)
    assert tab.page.locator("#hardware option:checked").inner_text() == "test.kcast"
    assert tab.text("#hardware-note") == "your bundle"
    assert tab.page.locator("#network").is_disabled()
    answer = tab.text("#tiles")
    tab.page.select_option("#hardware", "h100-sxm")
    tab.settle()
    assert tab.text("#tiles") != answer
    tab.open(tab.page.url)
    assert tab.page.input_value("#hardware") == "h100-sxm"
