"""README shows what its commands print, and its commands run as they are written."""

import re
from pathlib import Path

from kernelcast.docs import generate_readme

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_shows_what_is_printed() -> None:
    assert README.count("\n$ ") == 7
    assert generate_readme.page(README) == README, "README.md is not current: make docs"


def test_readme_is_short_and_names_files_that_are_there() -> None:
    lines = README.splitlines()
    assert len(lines) <= 180
    assert max(map(len, lines)) < 190
    blocks = re.findall(r"```(?:sh|console)\n(.*?)```", README, re.DOTALL)
    named = {
        word for block in blocks for word in block.split() if word.startswith(("docs/", "tests/", "demo/"))
    }
    assert named
    assert [word for word in named if not (ROOT / word.rstrip(":")).exists()] == []
