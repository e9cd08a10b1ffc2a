"""Run the marked blocks of pages and write what their commands print below them (`make docs`).

A block is marked by a line before its fence: `<!-- run -->`, `<!-- run: tests/data/small.db as bench.db -->` with
files of the project that it needs, or `<!-- run fails -->` where the command is refused. The marked blocks of a page
run in their order in one empty folder. Lines that begin with `$ ` are commands, and what they print is written below
them; in a block without such lines every line is a command, and what it prints is not shown.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
_BLOCK = re.compile(r"(<!-- run( fails)?(?:: (.*?))? -->\n```\w*\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n", re.MULTILINE)
_LIMIT_S = 300


def pages() -> list[Path]:
    """Pages that have marked blocks."""
    return [path for path in sorted(DOCS.glob("*.md")) if _BLOCK.search(path.read_text(encoding="utf-8"))]


def page(text: str) -> str:
    """A page whose marked blocks were run again.

    Raises:
        SystemExit: a command failed, or one that should be refused was not.
    """
    with TemporaryDirectory() as folder:
        return _BLOCK.sub(lambda block: _block(block, Path(folder)), text)


def _block(block: re.Match[str], folder: Path) -> str:
    fails = bool(block[2])
    for file in filter(None, map(str.strip, (block[3] or "").split(","))):
        source, _, name = file.partition(" as ")
        shutil.copy(ROOT / source, folder / (name or Path(source).name))
    commands = [found[1] for found in _COMMAND.finditer(block[4])]
    if not commands:
        _printed(block[4], folder, fails=fails)
        return block[0]
    shown = "".join(f"$ {command}\n{_printed(command, folder, fails=fails)}" for command in commands)
    return f"{block[1]}{shown}{block[5]}"


def _printed(script: str, folder: Path, *, fails: bool) -> str:
    # The command of this Python, whatever the shell's path says.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    environment = os.environ | {
        "PATH": path,
        "COLUMNS": "100",
        "LINES": "40",
        "NO_COLOR": "1",
        "HOME": str(folder),
        "XDG_CONFIG_HOME": "",
        "XDG_CACHE_HOME": "",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    if (done.returncode != 0) is not fails or "Traceback" in done.stdout:
        raise SystemExit(f"{shlex.join(script.split())}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    for one in pages():
        one.write_text(page(one.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{one.relative_to(ROOT)}: blocks run")
