"""The site: every page is in its contents, links lead to pages of it, and a built one fetches nothing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kernelcast.docs import build_site

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of copied pages."""
    build_site.STAGE = tmp_path_factory.mktemp("site") / "pages"
    build_site.stage()
    return build_site.STAGE


def test_every_page_is_in_the_contents_once(pages: Path) -> None:
    text = re.sub(r"slugify: .*", "", (ROOT / "mkdocs.yml").read_text())

    def named(entry: object) -> list[str]:
        if isinstance(entry, dict):
            return [name for value in entry.values() for name in named(value)]
        return [name for one in entry for name in named(one)] if isinstance(entry, list) else [str(entry)]

    listed = named(yaml.safe_load(text)["nav"])
    assert sorted(listed) == sorted(path.name for path in pages.glob("*.md"))


def test_links_of_the_site_lead_to_what_it_has(pages: Path) -> None:
    links = 0
    for page in pages.glob("*.md"):
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\((?!\w+:)([^)#\s]+)", prose):
            assert (page.parent / target).exists(), (page.name, target)
            assert ".." not in target
            links += 1
    assert links > 200


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[sql.md](sql.md#x)", "[Questions in SQL](sql.md#x)"),
        ("[by SQL](sql.md)", "[by SQL](sql.md)"),
        ("[code](../runtime/errors.py)", "`code`"),
        ("[some words](../runtime/errors.py)", "some words"),
        ("[log](../CHANGELOG.md)", "[log](changelog.md)"),
        ("[paper](https://arxiv.org/abs/2509.22832)", "[paper](https://arxiv.org/abs/2509.22832)"),
        ("![picture](schema.svg)", "![picture](schema.svg)"),
        ("```\n[a](../b)\n```", "```\n[a](../b)\n```"),
    ],
)
def test_links_to_what_is_no_page_are_text(text: str, shown: str) -> None:
    assert build_site.staged(text, ROOT / "docs") == shown


@pytest.mark.parametrize(
    ("html", "count"),
    [
        ('<script src="https://unpkg.com/iframe-worker/shim.js"></script>', 1),
        ('<link rel="stylesheet" href="https://fonts.example.org/a.css?x=1">', 1),
        ('<a href="https://example.org/page">x</a><script src="assets/a.js"></script>', 0),
    ],
)
def test_what_is_fetched_from_elsewhere_is_found(tmp_path: Path, html: str, count: int) -> None:
    (tmp_path / "page.html").write_text(html)
    assert len(list(build_site.fetched(tmp_path))) == count


@pytest.mark.slow
def test_the_site_is_built(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "build_site.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    built = ROOT / "site"
    # Its index of words is a script, so that files that were opened without a server can be searched.
    assert "recomputation" in (built / "search.js").read_text()
    # The page for a missing file has no folder to be relative to.
    for page in set(built.glob("*.html")) - {built / "404.html"}:
        text = page.read_text()
        for target, anchor in re.findall(r'href="(?!\w+:)([^"#?]*)(?:#([^"]*))?"', text):
            other = built / target if target else page
            assert target in (".", "") or other.exists(), (page.name, target)
            if anchor and other.suffix == ".html":
                assert re.search(rf'(?:id|name)="?{re.escape(anchor)}[">\s]', other.read_text()), (
                    page.name,
                    target,
                    anchor,
                )
