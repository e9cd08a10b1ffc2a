"""A real headless Chromium, driven by Playwright: Debian's browser, no other is downloaded."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from kernelcast.docs.headless_explorer import FLAGS

WAIT_MS = 300_000


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The browser."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (make test-browser)")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("chromium is not installed (make test-browser)")
    with api.sync_playwright() as playwright:
        # Each launch has a new profile of its own.
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS, timeout=WAIT_MS)
        yield browser
        browser.close()


class Tab:
    """A page, with what its console said. `errors` must be empty at the end, but for refusals that are `expected`."""

    def __init__(self, context: Any) -> None:
        self.page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.errors: list[str] = []
        self.expected: tuple[str, ...] = ()
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("pageerror", lambda error: self._note("error", str(error)))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.errors.append(text)

    def unexpected(self) -> list[str]:
        """Errors that were not announced."""
        return [text for text in self.errors if not any(part in text for part in self.expected)]

    def open(self, address: str) -> None:
        """Load an address in a fresh page, and wait for the whole answer."""
        self.page.goto("about:blank")
        self.page.goto(address)
        self.settle()

    def settle(self) -> None:
        """Wait until nothing is under way."""
        self.page.wait_for_selector("#answers[aria-busy=false]")

    def text(self, selector: str) -> str:
        """What a reader sees there."""
        return str(self.page.inner_text(selector))

    def layout(self) -> str:
        """The degrees of the answer that is shown."""
        return self.text("#answer-title")


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    """A page in a window of its own; fails where its console had an error."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, accept_downloads=True)
    found = Tab(context)
    yield found
    assert found.unexpected() == []
    context.close()
