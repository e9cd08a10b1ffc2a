"""An answer as a link, as files, as a job, and next to another answer."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kernelcast.cli.main import kernelcast

Tab, Explorer = Any, Any  # of the conftest.py files, which cannot be imported

pytestmark = pytest.mark.browser

FIXED = "#model=llama-2-7b&gpus=8&batch=16&top=100&layout=2.2.2.1.1.1.1.8.1f1b.1.false.none.1.even"


def test_a_link_gives_the_same_answer(tab: Tab, explorer: Explorer, browser: Any) -> None:
    tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=explorer.home)
    tab.open(explorer.home + FIXED)
    tab.page.fill("#price", "2.5")
    tab.page.press("#price", "Enter")
    tab.page.click("#share")
    tab.page.locator("#share", has_text="Link copied").wait_for()
    link = tab.page.evaluate("() => navigator.clipboard.readText()")
    answer = tab.text("#answer")
    tab.open(link)
    assert tab.text("#answer") == answer
    assert tab.page.input_value("#price") == "2.5"
    # Back in the history, or another fragment typed: the page follows.
    tab.page.evaluate("() => { location.hash = 'model=gpt-20b&gpus=8&batch=16&top=100'; }")
    tab.page.locator("#model-note", has_text="44 layers").wait_for()
    tab.settle()
    assert tab.page.input_value("#model") == "gpt-20b"


def test_a_damaged_link_is_the_start(tab: Tab, explorer: Explorer) -> None:
    tab.open(f"{explorer.home}#model=llama-2-7b&gpus=8&batch=16&top=100&config=%7Bnope&layout=1.2&pin=")
    assert "layouts looked at" in tab.text("#status")
    assert tab.page.input_value("#model") == "llama-2-7b"
    assert not tab.page.is_visible("#compare")


def test_a_link_to_what_does_not_exist(tab: Tab, explorer: Explorer) -> None:
    tab.expected = ("status of 422",)
    tab.open(f"{explorer.home}#model=nothing")
    assert tab.text("#problem").startswith("model 'nothing' is unknown")
    tab.page.select_option("#model", "llama-2-7b")
    tab.settle()
    assert not tab.page.is_visible("#problem")
    assert tab.layout()


def test_files(tab: Tab, explorer: Explorer, tmp_path: Path) -> None:
    tab.open(explorer.home + FIXED)
    for button, name in (("json", "llama-2-7b-8gpus.json"), ("page", "llama-2-7b-8gpus.html"),
                         ("trace", "llama-2-7b-8gpus.trace.json")):  # fmt: skip
        with tab.page.expect_download() as found:
            tab.page.click(f"#download-{button}")
        assert found.value.suggested_filename == name
        found.value.save_as(tmp_path / name)
    estimate = json.loads((tmp_path / "llama-2-7b-8gpus.json").read_text())
    assert (estimate["format"], estimate["parallelism"]["tp"]) == ("kernelcast.estimate/2", 2)
    assert (tmp_path / "llama-2-7b-8gpus.html").read_text().startswith("<!doctype html>")
    trace = json.loads((tmp_path / "llama-2-7b-8gpus.trace.json").read_text())
    assert trace["otherData"]["simulated_step_us"] == pytest.approx(1e6 * estimate["step_time_s"])


def test_a_job(tab: Tab, explorer: Explorer, tmp_path: Path) -> None:
    tab.open(explorer.home + FIXED)
    tab.page.fill("#tokens", "100M")
    tab.page.press("#tokens", "Enter")
    tab.page.select_option("#stack", "megatron-core")
    tab.settle()
    tab.page.click("#sbatch")
    tab.page.wait_for_selector("#dialog[open]")
    text = tab.text("#dialog pre")
    command, *lines = text.splitlines()
    words = dict(one.lstrip("-").partition("=")[::2] for one in shlex.split(command)[1:-1])
    assert (words["nodes"], words["gpus-per-node"]) == ("1", "8")
    assert " stack=megatron-core " in text
    # What `kernelcast walltime` makes of these very lines is the limit of the command.
    script = tmp_path / "train.sbatch"
    script.write_text("#!/bin/bash\n" + "\n".join(lines))
    result = CliRunner().invoke(
        kernelcast, ["walltime", str(script), "--format", "slurm"], catch_exceptions=False
    )
    assert result.stdout.splitlines()[0].strip() == words["time"]
    tab.page.keyboard.press("Escape")
    tab.page.wait_for_selector("#dialog", state="hidden")


def test_two_pinned_answers(tab: Tab, explorer: Explorer) -> None:
    tab.open(explorer.home + FIXED)
    tab.page.click("#pin")
    tab.settle()
    assert "Pin a second answer" in tab.text("#compare")
    tab.page.select_option("#hardware", "b200-sxm")
    tab.settle()
    tab.page.click("#pin")
    tab.settle()
    row = (
        tab.page.locator("#compared tr", has=tab.page.locator("th", has_text="Step")).inner_text().split("\t")
    )
    one, two = (float(text.split(" ")[0]) * (1e-3 if "ms" in text else 1) for text in row[1:3])
    change = float(row[3].replace("−", "-").removesuffix(" %"))
    assert change == pytest.approx(100 * (two / one - 1), abs=0.15)
    assert tab.page.locator("#compared tr", has_text="Hardware").inner_text().split("\t")[1:] == [
        "h100-sxm", "b200-sxm", "differs",
    ]  # fmt: skip
    # Pins are part of the link.
    address = tab.page.url
    tab.open(address)
    assert tab.page.locator("#compared thead th").count() == 4
    tab.page.locator("#compared thead button", has_text="show").first.click()
    tab.settle()
    assert tab.page.input_value("#hardware") == "h100-sxm"
    tab.page.locator("#compared thead button", has_text="unpin").first.click()
    tab.settle()
    assert tab.page.locator("#compared thead th").count() == 2
    tab.page.locator("#compared thead button", has_text="unpin").first.click()
    tab.settle()
    assert not tab.page.is_visible("#compare")
    assert "pin=" not in tab.page.url
