"""How soon the explorer answers, in a headless Chromium: after the page opens, and after a slider has moved.

Needs Playwright (extra `dev`) and Debian's chromium. Server and browser share this machine's cores. Prints a table;
--write puts it into docs/explore.md.
"""

import statistics
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from kernelcast.benchmarks.harness import Bench, script
from kernelcast.docs.headless_explorer import headless_explorer
from kernelcast.docs.markdown import table

SCRIPT = Path(__file__).with_name("explore.js").read_text(encoding="utf-8")


def first_answers(browser: Any, address: str) -> tuple[float, float]:
    """Ms from navigation to figures and to pictures, in a window of its own."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    page: Page = context.new_page()
    page.goto(address, wait_until="domcontentloaded")
    figures_ms, pictures_ms = page.evaluate(f"() => {SCRIPT}.first()")
    context.close()
    return figures_ms, pictures_ms


def moves(browser: Any, address: str) -> tuple[list[float], list[float]]:
    """Ms of slider moves to layouts that are new to the server, and again to the same."""
    page: Page = browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
    page.goto(address)
    page.wait_for_selector("#answers[aria-busy=false]")
    move = f"(field) => {SCRIPT}.moves(field)"
    passes = [
        [ms for field in ("tp", "pp", "micro_batch") for ms in page.evaluate(move, field)] for _ in range(2)
    ]
    page.context.close()
    return passes[0], passes[1]


def row(name: str, times_ms: list[float]) -> tuple[str, ...]:
    ordered = sorted(times_ms)
    high_ms = ordered[int(0.9 * (len(ordered) - 1))]
    return name, f"{statistics.median(ordered):,.0f} ms", f"{high_ms:,.0f} ms", f"{len(ordered)}"


@script(page="explore.md", repeat=15)
def main(bench: Bench) -> None:
    with headless_explorer() as (browser, address):
        very_first = first_answers(browser, address)
        opened = [first_answers(browser, f"{address}#batch={1024 + 64 * n}") for n in range(bench.repeat)]
        opened_again = [first_answers(browser, address) for _ in range(bench.repeat)]
        new, again = moves(browser, address)
    rows = [
        row("opening the page to figures and pictures, the server just started", [max(very_first)]),
        row("opening the page to figures and pictures, a new question", [max(one) for one in opened]),
        row("the same question again", [max(one) for one in opened_again]),
        row("a moved slider to figures and pictures, a new layout", new),
        row("the same, asked before", again),
    ]
    lines = table(("from", "median", "90th percentile", "times"), rows, is_padded=False)
    text = "\n".join([*lines, "", f"({bench.machine()}; server and browser share the cores.)"])
    bench.publish(text)
