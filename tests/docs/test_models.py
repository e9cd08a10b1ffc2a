"""docs/models.md shows what ships."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("generate_models", DOCS / "generate_models.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    assert generate.page(text) == text, "make docs writes it anew"
