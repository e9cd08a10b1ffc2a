"""What the runtime's documentation shows is what happens: examples run against a small bundle."""

import doctest
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

import kernelcast.runtime

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"
MODULES = (
    "kernelcast.runtime",
    "kernelcast.runtime.catalogue",
    "kernelcast.runtime.estimate.estimator",
    "kernelcast.runtime.intent.by_fields",
    "kernelcast.runtime.request.layout",
)


@pytest.fixture(autouse=True)
def folder(make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The examples run in a folder that holds here.kcast."""
    path = make_bundle(name="here.kcast")
    monkeypatch.chdir(path.parent)
    return path.parent


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_docstrings(module: str) -> None:
    result = doctest.testmod(import_module(module), optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert result.attempted > 0
    assert result.failed == 0


def test_examples_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    options = doctest.IGNORE_EXCEPTION_DETAIL
    result = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8", optionflags=options)
    assert result.attempted > 0
    assert result.failed == 0, capsys.readouterr().out


def test_every_public_name_is_documented_and_used_in_an_example() -> None:
    examples = "".join(
        example.source
        for test in doctest.DocTestFinder().find(kernelcast.runtime, "runtime", module=kernelcast.runtime)
        for example in test.examples
    )
    for name in kernelcast.runtime.__all__:
        assert name in examples
        assert getattr(kernelcast.runtime, name).__doc__
