"""README: every line of "Share a database" runs as it is written."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from kernelcast.cli.main import main

ROOT = Path(__file__).parent.parent.parent
SMALL = ROOT / "tests" / "data" / "small.db"


def test_the_lines_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"## Share a database\n.*?```\n(.*?)```", page, re.DOTALL)
    assert example is not None
    lines = example[1].splitlines()
    assert len(lines) <= 10
    monkeypatch.chdir(tmp_path)
    shutil.copy(SMALL, "theirs.db")
    shutil.copy(ROOT / "tests" / "data" / "importers" / "two_nodes.log", "two_nodes.log")
    commands = [["kernelcast", "db", "export", "theirs.db", "bench.db", "--operator", "gelu"]]
    commands += [shlex.split(line, comments=True) for line in lines]
    for name, *arguments in commands:
        assert name == "kernelcast"
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        printed = capsys.readouterr()
        assert (stopped.value.code, printed.err) == (0, ""), arguments
        assert printed.out
    assert Path("shared.db").exists()
    assert Path("bench-parquet", "kernel").is_dir()
