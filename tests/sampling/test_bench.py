"""docs/few-points.md says what docs/sampling.json holds."""

import json
from pathlib import Path

import pytest

from kernelcast.benchmarks import bench_sampling
from kernelcast.docs import generate_sampling
from kernelcast.docs.markdown import filled

ROOT = Path(__file__).parent.parent.parent


def test_the_table_is_that_of_the_record() -> None:
    document = json.loads((ROOT / "docs" / "sampling.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "few-points.md").read_text(encoding="utf-8")
    assert filled(page, "bench-sampling", generate_sampling.table_text(document)) == page
    assert list(document["operators"]) == [bench_sampling.label(*one) for one in bench_sampling.SHOWN]


def test_when_adaptive_is_as_good() -> None:
    needed = generate_sampling.needed
    found = {"sizes": [10, 20, 40], "random": [0.3, 0.2, 0.1], "adaptive": [0.2, 0.12, 0.08]}
    assert needed(found) == pytest.approx(30)
    assert needed(found | {"adaptive": [0.05, 0.12, 0.08]}) == pytest.approx(30)  # by luck at first
    assert needed(found | {"adaptive": [0.1, 0.1, 0.1]}) == 10
    assert needed(found | {"adaptive": [0.3, 0.2, 0.11]}) is None
