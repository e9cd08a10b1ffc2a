"""What the page about searching shows is what happens."""

import doctest
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcast.runtime.search import number_set

PAGE = Path(__file__).resolve().parents[3] / "docs" / "search.md"


def test_examples_of_the_page(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(make_bundle(name="here.kcast").parent)
    result = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert result.attempted > 0
    assert result.failed == 0, capsys.readouterr().out


def test_examples_of_docstrings() -> None:
    result = doctest.testmod(number_set)
    assert result.attempted > 0
    assert result.failed == 0
