"""docs/few-points.md says what docs/sampling.json holds."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent


def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_sampling", ROOT / "benchmarks" / "bench_sampling.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_that_of_the_record() -> None:
    module = bench()
    document = json.loads((ROOT / "docs" / "sampling.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "few-points.md").read_text(encoding="utf-8")
    between = page.partition(module.START)[2].partition(module.STOP)[0].strip()
    assert between == module.table_text(document)
    assert list(document["operators"]) == [module.label(*one) for one in module.SHOWN]


def test_when_adaptive_is_as_good() -> None:
    needed = bench().needed
    found = {"sizes": [10, 20, 40], "random": [0.3, 0.2, 0.1], "adaptive": [0.2, 0.12, 0.08]}
    assert needed(found) == pytest.approx(30)
    assert needed(found | {"adaptive": [0.05, 0.12, 0.08]}) == pytest.approx(30)  # by luck at first
    assert needed(found | {"adaptive": [0.1, 0.1, 0.1]}) == 10
    assert needed(found | {"adaptive": [0.3, 0.2, 0.11]}) is None
