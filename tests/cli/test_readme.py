"""README shows what its commands print, and its commands run as they are written; so do those of docs/sharing.md."""

import importlib.util
import re
import shlex
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from kernelcast.cli.main import main

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SMALL = ROOT / "tests" / "data" / "small.db"


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_readme", ROOT / "docs" / "generate_readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_readme_shows_what_is_printed() -> None:
    assert README.count("\n$ ") == 7
    assert _generator().page(README) == README, "README.md is not current: make docs"


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


def test_lines_of_sharing_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "sharing.md").read_text(encoding="utf-8")
    example = re.search(r"```\n(kernelcast db info.*?)```", page, re.DOTALL)
    assert example is not None
    lines = example[1].splitlines()
    assert len(lines) == 10
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
