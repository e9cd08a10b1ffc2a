"""docs/scoreboard.md shows the kept results, and its figures are what they say."""

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """docs/generate_scoreboard.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("generate_scoreboard", DOCS / "generate_scoreboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(generate: ModuleType) -> None:
    text = (DOCS / "validation" / "scoreboard.md").read_text(encoding="utf-8")
    assert generate.page(text, generate.sources()) == (DOCS / "scoreboard.md").read_text(encoding="utf-8")
    assert (DOCS / "scoreboard.png").read_bytes().startswith(b"\x89PNG")


def test_every_source_is_there_with_enough_of_its_steps(generate: ModuleType) -> None:
    counts = [len(steps) for steps in generate.sources().values()]
    assert len(counts) >= 5
    assert sum(counts) >= 120


def test_an_interval_scores_by_its_width_and_by_what_it_misses(generate: ModuleType) -> None:
    assert generate.interval_score({"measured_s": 2.0}, 1.0, 4.0) == pytest.approx(math.log(4))
    missed = generate.interval_score({"measured_s": 8.0}, 1.0, 4.0)
    assert missed == pytest.approx(math.log(4) + 20 * math.log(2))
