"""README, CONTRIBUTING, CHANGELOG, SECURITY and docs/ name files, headings and make targets that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BESIDE = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")]
PAGES = [*BESIDE, *sorted((ROOT / "docs").glob("*.md"))]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-")) for heading in headings}


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)", prose(page)):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if anchor:
            assert anchor in anchors(target), f"{path}#{anchor}"


@every_page
def test_paths_that_are_named_exist(page: Path) -> None:
    folders = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != ".")
    for path in re.findall(rf"(?<![\w./-])((?:{folders})/[\w./-]*\w\.(?:py|toml|sql|md|lua))\b", prose(page)):
        assert "NAME" in path or (ROOT / path).exists() or (page.parent / path).exists(), path


@every_page
def test_make_targets_that_are_named_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for named in re.findall(r"`make ([\w -]+)`", page.read_text(encoding="utf-8")):
        assert set(named.split()) <= targets, named


@pytest.mark.parametrize("page", PAGES[:2], ids=lambda page: page.name)
def test_the_tree_names_folders_that_exist_and_all_of_them(page: Path) -> None:
    lines = re.search(r"^```\n(runtime/ .*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert lines is not None
    tree = lines[1].splitlines()
    assert len(tree) <= 45
    folders: dict[int, Path] = {-1: ROOT}
    named = set()
    for line in tree:
        depth = (len(line) - len(line.lstrip())) // 2
        for name in re.match(r"\s*((?:[\w.]+/?  ?)*)", line)[1].split():  # type: ignore[index]
            if name.endswith("/") or "." in name:
                folders[depth] = folders[depth - 1] / name
                assert folders[depth].exists(), line
                named.add(folders[depth])
    packages = [path for path in ROOT.iterdir() if (path / "__init__.py").exists()]
    # README names packages alone.
    rooms = [path for path in (ROOT / "runtime").iterdir() if (path / "__init__.py").exists()]
    assert {*packages, *(() if page.name == "README.md" else rooms)} <= named
