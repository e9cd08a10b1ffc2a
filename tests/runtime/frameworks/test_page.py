"""docs/frameworks.md and docstrings: their examples, and a row for every setting."""

import doctest
from pathlib import Path

import pytest

from kernelcast.runtime.frameworks import cut
from kernelcast.runtime.frameworks.layout_files import FRAMEWORKS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "frameworks.md"


def test_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for result in (doctest.testfile(str(PAGE), module_relative=False), doctest.testmod(cut)):
        assert result.attempted > 0
        assert result.failed == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_setting_of_a_layout_is_on_the_page(name: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    layout = {"tp", "pp", "dp", "devices", "micro_batch", "global_batch", "schedule", "zero", "recompute"}
    for row in FRAMEWORKS[name].rows:
        if layout & set(row.fields):
            for key in row.keys:
                assert key.removeprefix("parallelism.") in text, key
