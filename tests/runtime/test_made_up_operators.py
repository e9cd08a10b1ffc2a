"""Names carry no meaning: an operator that the table gains, and roles that it does not list, work by their fields."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from kernelcast.runtime import DataError, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.answers.bundle_check import check_bundle
from kernelcast.runtime.answers.sources import source_of
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.estimate.explanation import explain_operator
from kernelcast.runtime.operators import OPERATORS, Direction, Operator, role_name
from kernelcast.runtime.operators.elementwise import elementwise
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.space import Space
from kernelcast.runtime.search.sweep import sweep
from kernelcast.runtime.step import decomposition, passes, update
from kernelcast.runtime.step.layers import attention, linear, loss, mlp, norm, transformer_layer
from kernelcast.runtime.step.op import Op, Ops, op
from kernelcast.runtime.step.passes import remembered_ops
from kernelcast.runtime.step.sizes import Sizes

Make = Callable[..., Path]
MODEL = ModelConfig(
    name="tiny", hidden_size=8, sequence_length=4, attention_heads=2, layers=4, vocabulary_size=100
)
LAYOUT = Parallelism(pp=2, tp=2, dp=2, micro_batch=1, micro_batches=2, zero=3, schedule="zero_bubble")


def predicted(path: Path) -> Estimate:
    return Estimator.load(path).predict(model=MODEL, parallelism=LAYOUT)


def us(seconds: float) -> float:
    return round(seconds * 1e6, 6)


def _forget_passes() -> None:
    passes.passes_of.cache_clear()
    remembered_ops.forget()


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    """What layers call is remembered; here it changes."""
    _forget_passes()
    yield
    _forget_passes()


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Operator:
    """A law in the table whose name suggests a collective, an optimizer and a linear; every MLP calls it thrice."""
    row = elementwise(
        "dp_optimizer_linear_all_gather",
        "",
        "adds something",
        {"rows": "tokens", "columns": "elements"},
        forward=(1, 2),
        backward=(1, 2),
    )
    known = OPERATORS
    table = MappingProxyType({**known, row.name: row})
    for module in list(sys.modules.values()):
        if getattr(module, "OPERATORS", None) is known:
            monkeypatch.setattr(module, "OPERATORS", table)
    usual = mlp.mlp

    def more(s: Sizes) -> Ops:
        return (*usual(s), op("made up", row.name, s.tokens, s.hidden, role="made up", count=3, module="mlp"))

    monkeypatch.setattr(mlp, "mlp", more)
    return row


def test_an_operator_that_the_table_gains(made_up: Operator, make_bundle: Make) -> None:
    times = {made_up.name: 100.0, (made_up.name, Direction.BACKWARD): 40.0}
    check_bundle(make_bundle(times, optional_us=0.1, name="checked.kcast"))
    path = make_bundle(times)
    estimate = predicted(path)
    # A layer's 11 operators take 10 forward and 20 backward, its two all-reduces 5.
    assert us(estimate.components.layer_forward_s) == 110 + 10 + 300
    assert us(estimate.components.layer_backward_s) == 220 + 10 + 120
    assert us(estimate.components.tp_all_reduce_s) == 5
    rows = [row for row in estimate.operators if row.operator == made_up.name]
    assert {(row.direction.value, row.role, row.vector, row.time_us) for row in rows} == {
        ("forward", "made up", (4, 8), 100),
        ("backward", "made up", (4, 8), 40),
    }
    forward, backward = explain_operator(estimate, Estimator.load(path).bundle, made_up.name)
    assert (forward.calls, backward.calls) == (4 * 3 * 2, 4 * 3 * 2)
    assert role_name(made_up.name, "made up") == f"{made_up.name} (made up)"
    assert estimate.warnings == ()
    question = Question(
        space=Space(model=MODEL, gpus=(8,), global_batch=4, gpus_per_node=8), top=1000, prune=False
    )
    best = sweep(Estimator.load(path).predictor, question).best
    layouts = [best.layouts.parallelism(row) for row in range(len(best))]
    assert best.step_us[layouts.index(LAYOUT)] / 1e6 == estimate.step_time_s


def test_a_bundle_without_it(made_up: Operator, make_bundle: Make) -> None:
    path = make_bundle(without=[made_up.name])
    for direction in made_up.directions:
        assert source_of((made_up.name, direction), Estimator.load(path).bundle.entries) is None
    with pytest.raises(DataError, match=rf"has no regressor for {made_up.name} \(forward\) \(needed by"):
        predicted(path)


def test_roles_that_the_table_does_not_list(monkeypatch: pytest.MonkeyPatch, make_bundle: Make) -> None:
    path = make_bundle({"gemm": 17.0, "adam": 23.0})
    usual = predicted(path)

    def renamed(name: str, operator: str, *shape: Any, role: str = "", **others: Any) -> Op:
        return op(name, operator, *shape, role=f"made up {role}", **others)

    for module in (attention, linear, loss, mlp, norm, transformer_layer, update, decomposition):
        monkeypatch.setattr(module, "op", renamed)
    _forget_passes()
    other = predicted(path)
    assert {row.role for row in other.operators if row.operator == "gemm"} == {
        f"made up {role}" for role in ("qkv", "attention_output", "mlp_up", "mlp_down", "logits")
    }
    assert (other.step_time_s, other.interval_s) == (usual.step_time_s, usual.interval_s)
    assert other.components == usual.components
    assert list(other.answers.values()) == list(usual.answers.values())
