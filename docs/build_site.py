"""Build the documentation as a site into site/ (`make site`; extra `docs`).

Pages are written to be read in the repository, so the site gets copies whose links to what is no page (code, other
folders) are their text alone. CONTRIBUTING, CHANGELOG and SECURITY are pages too.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS, STAGE = ROOT / "docs", ROOT / "build" / "site-pages"
BESIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
_ASSETS = ("*.png", "*.svg", "*-gpt.toml", "small/*.toml", "site/*", "training_step.py")
# Of pages written by a tool from what is not in this project: nothing is fetched from elsewhere.
_FOREIGN = re.compile(r"""(?:src|href)="https?://(?!zensical\.org)[^"]*\.(?:js|css|woff2?)[^"]*\"""")


def stage() -> None:
    """Copy pages and what they show to `STAGE`."""
    shutil.rmtree(STAGE, ignore_errors=True)
    STAGE.mkdir(parents=True)
    for pattern in _ASSETS:
        for path in DOCS.glob(pattern):
            target = STAGE / path.relative_to(DOCS)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
    for path in (*DOCS.glob("*.md"), *(ROOT / name for name in BESIDE)):
        name = path.name.lower() if path.parent == ROOT else path.name
        (STAGE / name).write_text(staged(path.read_text(encoding="utf-8"), path.parent), encoding="utf-8")


def staged(text: str, folder: Path) -> str:
    """A page of `folder` as the site shows it."""

    def link(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / found[2]))
        anchor = found[3] or ""
        if target.parent == ROOT and target.name in BESIDE:
            return f"[{found[1]}]({target.name.lower()}{anchor})"
        if target.parent == DOCS and target.suffix == ".md":
            # A site does not show names of files.
            words = _title(target) if found[1] == found[2] and target.exists() else found[1]
            return f"[{words}]({target.name}{anchor})"
        if any(target.match(str(DOCS / pattern)) for pattern in _ASSETS):
            return f"[{found[1]}]({target.relative_to(DOCS)}{anchor})"
        return found[1] if "`" in found[1] or " " in found[1] else f"`{found[1]}`"

    fence = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
    parts = fence.split(text)
    parts[::2] = (
        re.sub(r"(?<!!)\[([^\]]+)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)", link, part) for part in parts[::2]
    )
    return "".join(parts)


@cache
def _title(page: Path) -> str:
    heading = re.match(r"# (.*)", page.read_text(encoding="utf-8"))
    return page.stem if heading is None else heading[1].partition(": ")[0]


def fetched(site: Path) -> Iterator[str]:
    """What pages of a built site would fetch from elsewhere."""
    for path in sorted(site.rglob("*.html")):
        yield from (
            f"{path.relative_to(site)}: {found}" for found in _FOREIGN.findall(path.read_text("utf-8"))
        )


def main() -> int:
    """Build; status 1 where a page or a link is wrong, or a page fetches something."""
    stage()
    environment = os.environ | {"NO_COLOR": "1"}
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--strict"]
    try:
        done = subprocess.run([*command, "-f", str(ROOT / "mkdocs.yml")], env=environment, check=False)
    except FileNotFoundError:
        print(
            "docs/build_site.py: zensical is not installed; expected: pip install -e '.[docs]'",
            file=sys.stderr,
        )
        return 1
    foreign = list(fetched(ROOT / "site"))
    print(*foreign, sep="\n", end="\n" if foreign else "")
    return done.returncode or bool(foreign)


if __name__ == "__main__":
    sys.exit(main())
