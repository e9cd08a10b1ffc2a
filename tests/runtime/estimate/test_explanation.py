"""How an operator's time came about: what was asked, who answered, and its part in the step."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcast.runtime import Cluster, Estimator, ModelConfig, Parallelism, UsageError
from kernelcast.runtime.estimate.explanation import Explanation, explain_operator
from kernelcast.runtime.operators import Direction

Make = Callable[..., Path]
TINY = ModelConfig(
    name="tiny", hidden_size=8, sequence_length=4, attention_heads=2, layers=4, vocabulary_size=100
)


def explained(path: Path, operator: str, **layout: object) -> tuple[Explanation, ...]:
    estimator = Estimator.load(path)
    fields: dict[str, object] = {"pp": 2, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 3}
    estimate = estimator.predict(
        model=TINY,
        parallelism=Parallelism(**fields | layout),  # type: ignore[arg-type]
        cluster=Cluster(gpus_per_node=2),
    )
    return explain_operator(estimate, estimator.bundle, operator)


def test_by_hand(make_bundle: Make) -> None:
    forward, backward = explained(make_bundle(largest=20), "qkv_linear")
    assert (forward.direction, backward.direction) == (Direction.FORWARD, Direction.BACKWARD)
    assert forward.vector == (4, 8, 24)
    assert [(f.name, f.unit, f.value, f.minimum, f.maximum, f.inside) for f in forward.features] == [
        ("m", "rows", 4, 1, 20, True),
        ("k", "columns in", 8, 1, 20, True),
        ("n", "columns out", 24, 1, 20, False),
    ]
    assert (forward.time_us, forward.low_us, forward.high_us) == (10, 5, 20)
    # 4 layers, 3 micro-batches; a step's work is 3 · (110 · 4 + 220 · 4 + 30 + 90 + 10) + 2 · 5.
    assert forward.calls == 12
    assert forward.total_s == pytest.approx(120e-6)
    assert forward.share == pytest.approx(120 / 4360)
    assert backward.share == pytest.approx(240 / 4360)
    assert forward.entry.algorithm == "linear"
    json.dumps(forward.to_dict(), allow_nan=False)


def test_recomputed_passes_count(make_bundle: Make) -> None:
    forward, _ = explained(make_bundle(), "qkv_linear", recompute="full")
    assert forward.calls == 24


def test_once_per_update(make_bundle: Make) -> None:
    (first,) = explained(make_bundle(), "optimizer_first_stage")
    assert first.calls == 1
    assert [feature.value for feature in first.features] == list(first.vector) == [3640, 3]


def test_a_substitute_is_named(make_bundle: Make) -> None:
    path = make_bundle({"mp_all_reduce": 8.0}, without=("mp_all_gather", "dp_all_gather"))
    (gather,) = explained(path, "mp_all_gather", tp=2, pp=1, sequence_parallel=True)
    assert (gather.entry.operator, gather.factor, gather.time_us) == ("mp_all_reduce", 0.5, 4)
    assert gather.vector == (16, 1, 2)
    assert [feature.value for feature in gather.features] == [32, 1, 2]
    assert gather.to_dict()["regressor"]["operator"] == "mp_all_reduce"


def test_what_is_not_there(make_bundle: Make) -> None:
    with pytest.raises(UsageError, match=r"^operator 'rop' is unknown; known are embedding, "):
        explained(make_bundle(), "rop")
    with pytest.raises(
        UsageError, match=r"^operator swiglu is not part of this step; its operators are embedding, "
    ):
        explained(make_bundle(), "swiglu")
