"""Writes docs/explore-light.png and docs/explore-dark.png: the explorer as it is, in a headless Chromium.

    python docs/generate_explore_pictures.py

Needs Playwright and Pillow (extra `dev`) and Debian's chromium.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
# The light one has a pipeline whose passes can be told apart.
PICTURES = {
    "light": "#batch=64&schedule=1f1b&zero=1&price=2.5",
    "dark": "#hardware=b200-sxm&model=mixtral-8x22b&batch=256",
}


def main() -> None:
    """Write both."""
    command = [sys.executable, "-m", "kernelcast.cli.main", "explore", "--no-browser"]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "KERNELCAST_SITE": ""}
    )
    assert server.stdout is not None
    address = server.stdout.readline().split(" ")[0]
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            for scheme, question in PICTURES.items():
                context = browser.new_context(viewport={"width": 1360, "height": 1400}, color_scheme=scheme)
                page = context.new_page()
                page.goto(address + question)
                page.wait_for_selector("#answers[aria-busy=false]", timeout=120_000)
                target = FOLDER / f"explore-{scheme}.png"
                page.screenshot(path=target)
                # 256 colours are enough, and half the bytes.
                Image.open(target).quantize(256).save(target, optimize=True)
                context.close()
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
