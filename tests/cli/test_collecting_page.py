"""docs/collecting.md and the pages that go on from it: their commands in order, at a smaller plan, with processes of
this machine in place of srun's.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kernelcast.store import Database

ROOT = Path(__file__).parent.parent.parent
PLAN = ROOT / "tests" / "data" / "plans" / "tiny.toml"
PAGES = ("collecting", "load", "few-points")
FEW = ("--operator", "gelu", "--operator", "layer_norm")


def lines() -> list[str]:
    """Commands of the pages' blocks; of job scripts only what names nothing of Slurm's."""
    pages = [(ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in PAGES]
    blocks = [block for page in pages for block in page.split("```")[1::2]]
    found = [line for block in blocks for line in block.splitlines() if "$" not in line]
    calls = [line for line in found if re.match(r"(srun .*)?kernelcast ", line)]
    return [re.sub("^srun .*kernelcast collect comm", "kernelcast collect comm --procs 2", c) for c in calls]


def here(line: str) -> list[str]:
    """A line's arguments, for a run of seconds on a CPU."""
    arguments = shlex.split(line)[1:]
    if arguments[:1] == ["collect"] and "--for" not in arguments:
        if "--plan" in arguments:
            arguments[arguments.index("--plan") + 1] = str(PLAN)
        else:
            arguments += ["--plan", str(PLAN)]
        arguments += ["--device", "cpu", *(() if arguments[1] == "comm" else FEW)]
    return arguments


@pytest.mark.slow(minutes=4)
def test_the_page_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    ran = []
    for line in lines():
        arguments = here(line)
        done = subprocess.run(
            [sys.executable, "-m", "kernelcast.cli.main", *arguments],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=7200,
            check=False,
        )
        assert done.returncode == 0, (line, done.stderr)
        assert done.stdout, line
        ran.append(" ".join(arguments[:2]))
    assert ran[0] == "probe"
    assert {"collect plan", "collect compute", "collect comm", "db merge", "db check", "db export"} <= set(
        ran
    )
    with Database.open(tmp_path / "shared.db", read_only=True) as database:
        operators = {row.operator for row in database.read_samples()}
        assert all(run.site == "" for run in database.run_list())
    assert {"gelu", "layer_norm", "all_reduce", "all_gather", "point_to_point"} <= operators
    assert (tmp_path / "cluster.kcast").stat().st_size > 0
