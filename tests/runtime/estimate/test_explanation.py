"""How an operator's time came about: its workload, its source, and its part in the step."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime import Cluster, Estimator, ModelConfig, Parallelism, UsageError
from kernelcast.runtime.bundle.file import read_bundle, write_bundle
from kernelcast.runtime.estimate.explanation import Explanation, explain_operator
from kernelcast.runtime.operators import Direction

Make = Callable[..., Path]
TINY = ModelConfig(
    name="tiny", hidden_size=8, sequence_length=4, attention_heads=2, layers=4, vocabulary_size=100
)


def explained(path: Path, operator: str, **layout: object) -> tuple[Explanation, ...]:
    estimator = Estimator.load(path)
    fields: dict[str, object] = {"pp": 2, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 3}
    fields["layer_split"] = "paper"
    estimate = estimator.predict(
        model=TINY,
        parallelism=Parallelism(**fields | layout),  # type: ignore[arg-type]
        cluster=Cluster(gpus_per_node=2),
    )
    return explain_operator(estimate, estimator.bundle, operator)


def test_by_hand(make_bundle: Make) -> None:
    every = explained(make_bundle(largest=20), "gemm")
    assert [one.role for one in every if one.direction is Direction.FORWARD] == [
        "qkv", "attention_output", "mlp_up", "mlp_down", "logits",
    ]  # fmt: skip
    forward, to_input, to_weights = (one for one in every if one.role == "qkv")
    assert (to_input.direction, to_weights.direction) == (
        Direction.INPUT_GRADIENT,
        Direction.WEIGHT_GRADIENT,
    )
    assert forward.vector == (4, 8, 24)
    assert [(f.name, f.unit, f.value, f.minimum, f.maximum, f.inside) for f in forward.features] == [
        ("m", "rows", 4, 1, 20, True),
        ("k", "columns in", 8, 1, 20, True),
        ("n", "columns out", 24, 1, 20, False),
    ]
    # 5 to 20 µs inside of the range and beyond it: a larger product can be divided.
    assert (forward.low_us, forward.time_us, forward.high_us) == pytest.approx((5, 10, 20))
    # 4 layers, 3 micro-batches; a step's work is 3 · (110 · 4 + 220 · 4 + 30 + 90 + 10) + 2 · 5.
    assert forward.calls == 12
    assert forward.total_s == pytest.approx(120e-6)
    assert forward.share == pytest.approx(120 / 4360)
    assert to_input.share == to_weights.share == pytest.approx(120 / 4360)
    assert forward.entry.algorithm == "linear"
    json.dumps(forward.to_dict(), allow_nan=False)


def test_elements_decide_whether_an_elementwise_operator_is_inside(make_bundle: Make, tmp_path: Path) -> None:
    read = read_bundle(make_bundle(largest=20))
    entries = tuple(
        replace(entry, elements_range=(1.0, 64.0)) if entry.operator in ("gelu", "softmax") else entry
        for entry in read.manifest.regressors
    )
    path = tmp_path / "elements.kcast"
    write_bundle(path, replace(read.manifest, regressors=entries), read.files)
    one = explained(path, "gelu")[0]
    # 1 · 4 tokens of 32 columns.
    assert one.elements is not None
    assert (one.elements.name, one.elements.value, one.elements.maximum, one.elements.inside) == (
        "elements", 128, 64, False,
    )  # fmt: skip
    assert {feature.inside for feature in one.features} == {None}
    assert not one.inside
    assert explained(path, "layer_norm")[0].elements is None


def test_recomputed_passes_count(make_bundle: Make) -> None:
    calls = {
        one.direction: one.calls
        for one in explained(make_bundle(), "gemm", recompute="full")
        if one.role == "qkv"
    }
    assert calls == {
        Direction.FORWARD: 24,
        Direction.INPUT_GRADIENT: 12,
        Direction.WEIGHT_GRADIENT: 12,
    }


def test_once_per_update(make_bundle: Make) -> None:
    first, last = explained(make_bundle(), "adam")
    assert (first.role, last.role) == ("first_stage", "last_stage")
    assert (first.calls, last.calls) == (1, 1)
    assert [feature.value for feature in first.features] == list(first.vector) == [3640, 3]


def test_a_substitute_is_named(make_bundle: Make) -> None:
    path = make_bundle({"all_reduce": 8.0}, without=("all_gather",))
    (gather,) = explained(path, "all_gather", tp=2, pp=1, sequence_parallel=True)
    assert (gather.role, gather.entry.operator, gather.factor) == ("tensor", "all_reduce", 0.5)
    assert gather.time_us == 4
    assert gather.vector == (16, 1, 2)
    assert [feature.value for feature in gather.features] == [32, 1, 2]
    assert gather.to_dict()["regressor"]["operator"] == "all_reduce"


def test_roles_and_their_names_in_the_paper(make_bundle: Make) -> None:
    path = make_bundle(largest=20)
    of_role = explained(path, "qkv")
    assert [one.role for one in of_role] == ["qkv"] * 3
    assert of_role == explained(path, "Linear1")
    assert of_role == tuple(one for one in explained(path, "gemm") if one.role == "qkv")
    for absent in ("mlp_gate_up", "MP_All-reduce"):
        with pytest.raises(
            UsageError, match=rf"^operator '?{absent}'? is not part of this step; its operators"
        ):
            explained(path, absent)


def test_halves_of_a_sum_are_named(make_bundle: Make) -> None:
    gradients = [("gemm", Direction.INPUT_GRADIENT), ("gemm", Direction.WEIGHT_GRADIENT)]
    path = make_bundle({("gemm", Direction.BACKWARD): 26.0}, without=gradients)
    found = [one for one in explained(path, "gemm") if one.role == "qkv"][1:]
    assert [(one.operator, one.direction) for one in found] == gradients
    for one in found:
        assert (one.entry.key, one.factor, one.time_us) == (("gemm", Direction.BACKWARD), 0.5, 13)
        assert one.vector == tuple(feature.value for feature in one.features) == (4, 8, 24)


def test_what_is_not_there(make_bundle: Make) -> None:
    with pytest.raises(UsageError, match=r"^operator rop is unknown; of this step nearest is rope$"):
        explained(make_bundle(), "rop")
    with pytest.raises(
        UsageError,
        match=r"^operator swiglu is not part of this step; its operators and roles are embedding, ",
    ):
        explained(make_bundle(), "swiglu")
