"""docs/asking.md shows what its commands print."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent.parent


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_asking", ROOT / "docs" / "generate_asking.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current() -> None:
    text = (ROOT / "docs" / "asking.md").read_text(encoding="utf-8")
    assert text.count("\n$ kernelcast predict ") == 5
    assert _generator().page(text) == text, "docs/asking.md is not current: make docs"
