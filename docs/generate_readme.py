"""Write what the commands of README.md print below them (`make docs`).

The commands of a `console` block run one after the other, all blocks in one folder that shows the clone's files and
keeps what the commands make. Blocks of another kind are not run here.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "README.md"
_BLOCK = re.compile(r"```console\n(.*?)```\n", re.DOTALL)
_COMMAND = re.compile(r"^\$ (?:.*<<'END'\n(?:.*\n)*?END\n|(?:.*\\\n)*.*\n)", re.MULTILINE)


def page(text: str) -> str:
    """The page with the output of every command run again."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for shown in ("docs", "tests", "demo"):
            (folder / shown).symlink_to(ROOT / shown)
        return _BLOCK.sub(lambda block: f"```console\n{_made_anew(block[1], folder)}```\n", text)


def _made_anew(block: str, folder: Path) -> str:
    return "".join(
        command + printed(command.removeprefix("$ "), folder) for command in _COMMAND.findall(block)
    )


def printed(command: str, folder: Path) -> str:
    """Standard output of a command of the shell, through a pipe; it must succeed."""
    # The command of this Python, whatever the shell's path says.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"PATH": path}
    done = subprocess.run(
        ["bash", "-eu", "-c", command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
    )
    return done.stdout


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
