"""Predictions and searches answer what they answered before, to 1e-9 (tests/golden/compare.py shows more)."""

from typing import Any

import pytest

from tests.golden.checked import case_differences, search_differences
from tests.golden.differences import Difference
from tests.golden.files import DEVICES, Case, fast_cases, golden_cases, golden_models, read

MODELS = tuple(golden_models())
MOST_SHOWN = 10


def message(found: list[Difference]) -> str:
    """The first differences, largest first."""
    found.sort(key=lambda one: -one.size)
    lines = "\n".join(map(str, found[:MOST_SHOWN]))
    return f"{len(found)} numbers differ (python -m tests.golden.compare):\n{lines}"


def check(device: str, cases: tuple[Case, ...]) -> None:
    found = [one for case in cases for one in case_differences(device, case)]
    assert not found, message(found)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("device", DEVICES)
def test_some_layouts_of_a_model_answer_as_before(device: str, model: str) -> None:
    check(device, fast_cases(model))


@pytest.mark.slow(minutes=0.03)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("device", DEVICES)
def test_all_layouts_of_a_model_answer_as_before(device: str, model: str) -> None:
    check(device, golden_cases()[model])


@pytest.mark.slow
@pytest.mark.parametrize("question", read("searches.json"), ids=lambda one: one["name"])
def test_a_search_finds_the_same_layouts(question: dict[str, Any]) -> None:
    found = search_differences(question)
    assert not found, message(found)
