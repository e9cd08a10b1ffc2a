"""A running explorer and a headless Chromium (Debian's), for the pictures of docs/explore.md and for its benchmark."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@contextmanager
def headless_explorer() -> Iterator[tuple[Any, str]]:
    """Yield Playwright's browser, and the address of a `kernelcast explore` that was just started."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "kernelcast.cli.main", "explore", "--no-browser"]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "KERNELCAST_SITE": ""}
    )
    assert server.stdout is not None
    address = server.stdout.readline().split(" ")[0]
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            yield browser, address
            browser.close()
    finally:
        server.terminate()
        server.wait()
