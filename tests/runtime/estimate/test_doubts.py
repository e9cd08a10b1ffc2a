"""Warnings in groups: none is lost, shares are parts of the step, and what has no influence is not shown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import Cluster, Estimate, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.answers.asking import Question
from kernelcast.runtime.answers.sources import Exceeded, Source
from kernelcast.runtime.answers.warnings import (
    AnswerWarning,
    Cause,
    concurrency_warning,
    feature_warning,
    large_error_warning,
    layout_warning,
    left_out_warning,
    substitute_warning,
)
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.estimate.doubts import LEAST_SHARE, MOST_LINES, grouped, warning_lines
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.step.op import ONCE_PER_UPDATE

Make = Callable[..., Path]
NAMES = sorted(OPERATORS)
F = Direction.FORWARD
QUESTIONS = st.builds(
    lambda name, size, role: ((name, F), (size,), role),
    st.sampled_from(NAMES),
    st.integers(1, 5),
    st.sampled_from(["", "a"]),
)
CPU = ComputeFingerprint(kind="cpu", device_name="some")
WARNINGS: st.SearchStrategy[AnswerWarning] = st.one_of(
    st.builds(
        lambda name, direction, feature, asked: feature_warning(
            (name, direction), Exceeded(feature=feature, asked=asked, minimum=10.0, maximum=20.0)
        ),
        st.sampled_from(NAMES),
        st.sampled_from(Direction),
        st.sampled_from(["m", "n"]),
        st.floats(0, 1e9),
    ),
    st.builds(
        lambda nodes, gpus: layout_warning(("all_reduce", Direction.ONCE), (nodes, gpus), ((1, 2),)),
        st.integers(1, 64),
        st.integers(1, 8),
    ),
    st.builds(
        lambda name: substitute_warning(Source(key=(name, F), answered_by=("residual_add", F))),
        st.sampled_from(NAMES),
    ),
    st.builds(left_out_warning, st.sampled_from([("gradient_zero",), ("bias_add", "qkv_split")])),
    st.builds(large_error_warning, st.just(("gelu", F)), st.floats(0.3, 0.9)),
    st.builds(concurrency_warning, st.just([CPU]), st.just((1, 2)), st.integers(3, 9)),
)


@given(
    concerned=st.dictionaries(WARNINGS, st.frozensets(QUESTIONS, max_size=4), max_size=20),
    times_s=st.dictionaries(QUESTIONS, st.floats(0, 1e6), max_size=30),
)
def test_no_warning_is_lost_and_shares_are_parts(
    concerned: dict[AnswerWarning, frozenset[Question]], times_s: dict[Question, float]
) -> None:
    doubts = grouped(concerned, times_s)
    found = [warning for doubt in doubts for warning in doubt.warnings]
    assert len(found) == len(concerned)
    assert set(found) == set(concerned)
    assert len({doubt.cause for doubt in doubts}) == len(doubts)
    for doubt in doubts:
        assert all(warning.cause is doubt.cause for warning in doubt.warnings)
        assert doubt.share is None or 0 <= doubt.share <= 1
        assert doubt.has_influence == (doubt.share is None or doubt.share >= LEAST_SHARE)
        assert doubt.summary
    lines = warning_lines(doubts)
    assert len(lines) <= MOST_LINES
    assert all("\n" not in line for line in lines)
    assert bool(lines) == any(doubt.has_influence for doubt in doubts)


def test_the_worst_of_an_operator_is_shown_and_the_operators_that_matter_first() -> None:
    def beyond(operator: str, asked: float) -> AnswerWarning:
        return feature_warning((operator, F), Exceeded(feature="n", asked=asked, minimum=1.0, maximum=10.0))

    def one(operator: str) -> Question:
        return (operator, F), (1,), ""

    times_s = {one("gemm"): 6.0, one("gelu"): 3.0, one("rope"): 0.9999, one("softmax"): 0.0001}
    concerned: dict[AnswerWarning, set[Question]] = {
        beyond("softmax", 1e4): {one("softmax")},
        beyond("gelu", 20): {one("gelu")},
        beyond("gemm", 15): {one("gemm")},
        beyond("gemm", 24): {one("gemm")},
        beyond("rope", 0.5): {one("rope")},
    }
    [doubt] = grouped(concerned, times_s)
    assert doubt.line == (
        "extrapolated: gemm up to 2.4× beyond measured n; gelu up to 2× beyond measured n; "
        "rope up to 2× below measured n (100.0 % of the step)"
    )
    assert warning_lines([doubt], hint="page") == [doubt.line, "5 warnings in all (page)"]
    [small] = grouped({beyond("softmax", 1e4): {one("softmax")}}, times_s)
    assert (small.has_influence, warning_lines([small])) == (False, [])
    assert small.to_dict() == {
        "cause": "extrapolated",
        "summary": "softmax up to 1,000× beyond measured n",
        "share": pytest.approx(1e-5),
        "has_influence": False,
        "warnings": 1,
    }


GPT: dict[str, Any] = {
    "name": "gpt",
    "hidden_size": 8,
    "sequence_length": 4,
    "attention_heads": 2,
    "layers": 2,
    "vocabulary_size": 100,
}


def predict(path: Path, **layout: Any) -> Estimate:
    return Estimator.load(path).predict(
        model=ModelConfig(**GPT),
        parallelism=Parallelism(**{"pp": 1, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 2} | layout),
        cluster=Cluster(gpus_per_node=2),
        interval=False,
    )


def test_an_estimate_by_hand(make_bundle: Make) -> None:
    # Two layers with four biases each; forward and backward of two micro-batches. Everything else takes 1 µs a call.
    times: dict[Any, Any] = {name: 1.0 for name in OPERATORS if name not in ("bias_add", "gradient_zero")}
    path = make_bundle(times, without=["bias_add", "gradient_zero"])
    found = predict(path)
    assert [doubt.cause for doubt in found.doubts] == [Cause.SUBSTITUTED]
    [substituted] = found.doubts
    rows = [
        (row.operator, row.total_s * (1 if row.component in ONCE_PER_UPDATE else 2))
        for row in found.operators
    ]
    answered_s = sum(time_s for name, time_s in rows if name in ("bias_add", "gradient_zero"))
    assert substituted.share == pytest.approx(answered_s / sum(time_s for _, time_s in rows))
    assert set(substituted.summary.split("; ")) == {
        "bias_add by residual_add",
        "gradient_zero by residual_add",
    }
    values = found.to_dict()
    assert [group["cause"] for group in values["warning_groups"]] == ["substituted"]
    for one in values["warnings"]:
        assert (one["share"] is None) == (one["cause"] == "left_out")
    assert found.doubtful_share == pytest.approx(substituted.share)


def test_a_bundle_that_knows_everything_has_no_doubts(make_bundle: Make) -> None:
    found = predict(make_bundle())
    assert (found.warnings, found.doubts, found.doubtful_share) == ((), (), 0.0)
    assert found.to_dict()["warning_groups"] == []
