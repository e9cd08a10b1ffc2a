"""Writes docs/explore-light.png and docs/explore-dark.png: the explorer as it is, in a headless Chromium.

    python docs/generate_explore_pictures.py

Needs Playwright and Pillow (extra `dev`) and Debian's chromium.
"""

from pathlib import Path

from PIL import Image

from kernelcast.docs.headless_explorer import headless_explorer

FOLDER = Path(__file__).parent
# The light one has a pipeline whose passes can be told apart.
PICTURES = {
    "light": "#batch=64&schedule=1f1b&zero=1&price=2.5",
    "dark": "#hardware=b200-sxm&model=mixtral-8x22b&batch=256",
}


def main() -> None:
    """Write both."""
    with headless_explorer() as (browser, address):
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


if __name__ == "__main__":
    main()
