"""Write what the commands of docs/asking.md print below them (`make docs`)."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "asking.md"
_BLOCK = re.compile(r"```\n\$ (kernelcast (?:.*\\\n)*.*\n)(?:.*\n)*?```\n")


def page(text: str) -> str:
    """The page with every command's output made anew."""
    return _BLOCK.sub(lambda block: f"```\n$ {block[1]}{_printed(block[1])}```\n", text)


def _printed(command: str) -> str:
    # The command of this Python, whatever the shell's path says.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"PATH": path}
    return subprocess.run(
        command, shell=True, check=True, capture_output=True, text=True, env=environment
    ).stdout


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
