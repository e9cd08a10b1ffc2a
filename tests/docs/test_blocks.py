"""Marked blocks of the pages run as they stand, and print what the pages show."""

from pathlib import Path

import pytest

from kernelcast.docs import generate_output

ROOT = Path(__file__).parent.parent.parent


PAGES = {path.name: path for path in generate_output.pages()}


# The pages that everybody reads first; the others take a minute.
FIRST = {"index.md", "first-prediction.md"}


@pytest.mark.parametrize(
    "name", [name if name in FIRST else pytest.param(name, marks=pytest.mark.slow) for name in PAGES]
)
def test_the_page_shows_what_its_commands_print(name: str) -> None:
    text = PAGES[name].read_text(encoding="utf-8")
    assert generate_output.page(text) == text, f"docs/{name} is not current: make docs"


def test_pages_of_tutorials_have_marked_blocks() -> None:
    assert {"asking.md", "first-prediction.md", "frameworks.md", "predicting.md", "sharing.md"} <= set(PAGES)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("<!-- run -->\n```\n$ kernelcast predict --fly\n```\n", "exit code 2"),
        ("<!-- run fails -->\n```\n$ kernelcast --version\n```\n", "exit code 0"),
        ("<!-- run -->\n```\nfalse | cat\ntrue\n```\n", "exit code 1"),
    ],
)
def test_commands_that_end_otherwise_than_said_are_found(block: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        generate_output.page(block)


def test_blocks_share_a_folder_and_show_what_is_printed() -> None:
    text = (
        "<!-- run: tests/data/small.db as mine.db -->\n```\nkernelcast db info mine.db --quiet > info\n```\n"
        "<!-- run -->\n```text\n$ grep -c mine \\\n    info\nold\n$ echo two\n```\n```\n$ not run\n```\n"
    )
    assert generate_output.page(text) == text.replace("old\n", "1\n").replace(
        "$ echo two\n", "$ echo two\ntwo\n"
    )
