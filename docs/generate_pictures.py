"""Write the pictures in docs/ that show pages, from the pages as they are, in a headless Chromium (`make pictures`).

    python docs/generate_pictures.py            # all, a few minutes: one shows a training
    python docs/generate_pictures.py explore    # some: explore, predict, report, datasette

Needs Playwright and Pillow (extra `dev`) and Debian's chromium.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from kernelcast.docs.headless_explorer import FLAGS
from kernelcast.store.querying import questions

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
KERNELCAST = [sys.executable, "-m", "kernelcast.cli.main"]
# The light one has a pipeline whose passes can be distinguished.
EXPLORED = {
    "light": "#batch=64&schedule=1f1b&zero=1&price=2.5",
    "dark": "#hardware=b200-sxm&model=mixtral-8x22b&batch=256",
}
# docs/timeline.md names this command.
PREDICTED = (
    "predict --hardware h100-sxm --model llama-3-70b --gpus 64 --global-batch 64 --pp 4 --schedule 1f1b"
)
TRAINED = ("gelu", "layer_norm", "all_reduce")
UPGRADE = "Did an upgrade make it slower?"
_WIDTH = 1280
_GAP = 14
_GREY = "#a3a8a3"


def explore(browser: Any, folder: Path) -> None:
    """The explorer, light and dark."""
    with server("explore", "--no-browser") as line:
        for scheme, question in EXPLORED.items():
            context = browser.new_context(viewport={"width": 1360, "height": 1400}, color_scheme=scheme)
            page = context.new_page()
            page.goto(line.split(" ")[0] + question)
            page.wait_for_selector("#answers[aria-busy=false]", timeout=120_000)
            page.screenshot(path=folder / "shot.png")
            store(f"explore-{scheme}.png", folder / "shot.png")
            context.close()


def predict(browser: Any, folder: Path) -> None:
    """The page of `predict --html`, to the end of the memory."""
    run(*PREDICTED.split(), "--html", str(folder / "step.html"), "--quiet")
    page = opened(browser, folder / "step.html")
    parts(page, folder, [("body", "section:has(h2:text-is('Memory of one device'))")], "predict.png")


def report(browser: Any, folder: Path) -> None:
    """The page of `train --report`: its beginning, and one collective."""
    database, some = folder / "perlmutter.db", folder / "some.db"
    run(
        "import",
        "estimate-train-time",
        str(ROOT / "datasets/estimate-train-time/Perlmutter"),
        "--db",
        str(database),
    )
    chosen = [word for name in TRAINED for word in ("--operator", name)]
    run("db", "export", str(database), str(some), *chosen)
    run("train", "--db", str(some), "-o", str(folder / "here.kcast"), "--report", str(folder / "report"))
    page = opened(browser, folder / "report" / "index.html")
    collective = "section.operator:has(h3:text('all_reduce'))"
    parts(
        page,
        folder,
        [("body", "section:has(h2:text-is('Errors at a glance'))"), (collective, collective)],
        "report.png",
    )


def datasette(browser: Any, folder: Path) -> None:
    """A query in SQL in the browser."""
    shutil.copy(ROOT / "tests" / "data" / "small.db", folder / "small.db")
    [name] = [one.name for one in questions("questions.sql") if one.title == UPGRADE]
    with server("db", "serve", str(folder / "small.db"), "--port", "0") as line:
        page = browser.new_page(viewport={"width": 1100, "height": 830})
        page.goto(f"{line.split(': ', 1)[1].split(' ')[0]}small/{name}")
        page.screenshot(path=folder / "shot.png", full_page=True)
    store("datasette.png", folder / "shot.png")


PICTURES: dict[str, Callable[[Any, Path], None]] = {
    "explore": explore,
    "predict": predict,
    "report": report,
    "datasette": datasette,
}


def run(*words: str) -> None:
    """A command of kernelcast, which must succeed."""
    subprocess.run([*KERNELCAST, *words], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def server(*words: str) -> Iterator[str]:
    """A command of kernelcast that serves pages: the line that it begins with."""
    environment = {**os.environ, "KERNELCAST_SITE": "", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen([*KERNELCAST, *words], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        yield process.stdout.readline()
    finally:
        process.terminate()
        process.wait()


def opened(browser: Any, path: Path) -> Any:
    """A page of a file."""
    page = browser.new_page(viewport={"width": _WIDTH, "height": 1000})
    page.goto(path.as_uri())
    return page


def parts(page: Any, folder: Path, found: list[tuple[str, str]], name: str) -> None:
    """Parts of a page below each other, each from the top of one element to the end of another."""
    shots = []
    for index, (first, last) in enumerate(found):
        top = page.locator(first).first.bounding_box()["y"]
        end = page.locator(last).first.bounding_box()
        clip = {
            "x": 0,
            "y": max(0, top),
            "width": _WIDTH,
            "height": end["y"] + end["height"] - max(0, top) + 12,
        }
        page.screenshot(path=folder / f"part{index}.png", full_page=True, clip=clip)
        shots.append(Image.open(folder / f"part{index}.png").convert("RGB"))
    height = sum(shot.height for shot in shots) + _GAP * (len(shots) - 1)
    whole = Image.new("RGB", (_WIDTH, height), _GREY)
    y = 0
    for shot in shots:
        whole.paste(shot, (0, y))
        y += shot.height + _GAP
    whole.save(folder / "whole.png")
    store(name, folder / "whole.png")


def store(name: str, shot: Path) -> None:
    """Into docs/: 256 colours are enough, and half the bytes."""
    Image.open(shot).convert("RGB").quantize(256).save(FOLDER / name, optimize=True)
    print(f"docs/{name}")


def main(names: list[str]) -> None:
    """Make the named pictures, or all."""
    if unknown := [name for name in names if name not in PICTURES]:
        sys.exit(f"{unknown[0]}: no such picture, expected {', '.join(PICTURES)}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name in names or PICTURES:
            with TemporaryDirectory() as folder:
                PICTURES[name](browser, Path(folder))
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
