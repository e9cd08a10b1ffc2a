"""Operators measured only with as many key-value heads as query heads: asked so for grouped queries, with a warning."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime import DataError, Estimate, Estimator, read_bundle
from kernelcast.runtime.bundle.file import Bundle, write_bundle
from kernelcast.runtime.estimate.explanation import explain_operator
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.space import Space
from kernelcast.runtime.search.sweep import sweep
from tests.runtime.answers.test_sources import TINY, B, F, Make, predicted

GROUPED = replace(TINY, name="grouped", attention_heads=4, kv_heads=2, head_size=2)


@pytest.fixture
def equal_heads(make_bundle: Make, linear_model: Callable[..., bytes], tmp_path: Path) -> Path:
    """Attention and RoPE measured only with as many key-value heads as query heads: 100 µs per key-value head."""
    model = linear_model((0, 0, 0, 100, 0), 0)
    measured = read_bundle(make_bundle({"flash_attention": model, "rope": model}))
    entries = tuple(
        replace(entry, equal_features=OPERATORS[entry.operator].equal_unless_measured or ())
        for entry in measured.manifest.regressors
    )
    path = tmp_path / "equal.kcast"
    write_bundle(path, replace(measured.manifest, regressors=entries), measured.files)
    return path


def attention(estimate: Estimate) -> dict[tuple[str, Direction], tuple[tuple[int, ...], float]]:
    return {
        (row.operator, row.direction): (row.vector, row.time_us)
        for row in estimate.operators
        if row.operator in ("flash_attention", "rope")
    }


def test_grouped_queries_are_asked_as_equal_heads_where_only_those_were_measured(equal_heads: Path) -> None:
    estimate = predicted(equal_heads, model=GROUPED)
    both = [(name, direction) for name in ("rope", "flash_attention") for direction in (F, B)]
    # Four heads with a key and value each, though the model has two; the row keeps the model's own vector.
    assert attention(estimate) == dict.fromkeys(both, ((1, 4, 4, 2, 2), 400))
    assert {str(warning) for warning in estimate.warnings} == {
        f"{name} ({direction}): measured only with kv_heads = heads, so it is predicted for kv_heads = heads"
        for name, direction in both
    }
    assert len(estimate.warnings) == 4
    [warning] = [one for one in estimate.warnings if str(one).startswith("rope (forward)")]
    assert warning.to_dict() == {
        "cause": "substituted",
        "kind": "equal_features",
        "operator": "rope",
        "direction": "forward",
        "features": ["kv_heads", "heads"],
        "message": str(warning),
    }
    (explained, *_) = explain_operator(estimate, read_bundle(equal_heads), "rope")
    assert explained.vector == (1, 4, 4, 2, 2)
    assert [feature.value for feature in explained.features] == [1, 4, 4, 4, 2]


def test_equal_heads_need_no_warning(equal_heads: Path) -> None:
    estimate = predicted(equal_heads, model=replace(GROUPED, kv_heads=4))
    assert {time_us for _, time_us in attention(estimate).values()} == {400}
    assert estimate.warnings == ()


def test_grouped_queries_that_were_measured_are_asked_as_they_are(
    make_bundle: Make, linear_model: Callable[..., bytes]
) -> None:
    model = linear_model((0, 0, 0, 100, 0), 0)
    estimate = predicted(make_bundle({"flash_attention": model, "rope": model}), model=GROUPED)
    assert {time_us for _, time_us in attention(estimate).values()} == {200}
    assert estimate.warnings == ()


def test_a_search_asks_for_equal_heads_too(equal_heads: Path) -> None:
    estimator = Estimator.load(equal_heads)
    space = Space(model=GROUPED, gpus=(1,), global_batch=1, gpus_per_node=2, recompute=("none",))
    found = sweep(estimator.predictor, Question(space=space))
    assert found.best.step_us.tolist() == [1e6 * predicted(equal_heads, model=GROUPED).step_time_s]


@pytest.mark.parametrize(
    ("operator", "features"),
    [("rope", ("heads", "kv_heads")), ("rope", ("kv_heads",)), ("gelu", ("b", "l"))],
)
def test_only_features_that_may_be_equal_are_taken(
    make_bundle: Make, operator: str, features: tuple[str, ...]
) -> None:
    bundle: Bundle = read_bundle(make_bundle())
    with pytest.raises(DataError, match=rf"^regressor {operator} \(forward\): equal_features is \('"):
        replace(bundle.entries[operator, F], equal_features=features)
