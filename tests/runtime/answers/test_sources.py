"""What answers for an operator that a bundle lacks: which regressor, with which factor, and with which warning."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import Cluster, DataError, Estimate, Estimator, ModelConfig, Parallelism, read_bundle
from kernelcast.runtime.answers.asking import ask
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.answers.sources import Source, is_answered, left_out, source_of
from kernelcast.runtime.bundle.file import write_bundle
from kernelcast.runtime.operators import OPERATORS, Direction, Key

Make = Callable[..., Path]
F, B, ONCE = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE
INPUT, WEIGHT = Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT
GATHERS = ("all_gather", "reduce_scatter")
TINY = ModelConfig(
    name="tiny", hidden_size=8, sequence_length=4, attention_heads=2, layers=4, vocabulary_size=100
)
ONE: dict[str, Any] = {"pp": 1, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 1}


def predicted(path: Path, *, model: ModelConfig = TINY, **layout: Any) -> Estimate:
    return Estimator.load(path).predict(
        model=model, parallelism=Parallelism(**ONE | layout), cluster=Cluster(gpus_per_node=2)
    )


def times_us(estimate: Estimate) -> dict[str, float]:
    return {row.operator: row.time_us for row in estimate.operators if row.direction is ONCE}


def messages(estimate: Estimate) -> list[str]:
    return [str(warning) for warning in estimate.warnings]


def keys_of(name: str) -> tuple[Key, ...]:
    """An operator in every direction that it can be measured in, sums too."""
    return tuple((name, direction) for direction in OPERATORS[name].costs)


def test_equal_work_of_a_substitute_is_as_doubtful_as_both() -> None:
    def width(*entries: Key) -> float:
        source = source_of(("attention_block", B), entries)
        assert source is not None
        return source.log_half_width

    assert width(("attention_block", B)) == 0
    assert width(("flash_attention", B)) == pytest.approx(math.log(1.3))
    assert width(("flash_attention", F)) == pytest.approx(math.hypot(math.log(1.3), math.log(1.5)))


EVERY_KEY = tuple(key for name in OPERATORS for key in keys_of(name))


@pytest.mark.parametrize("key", EVERY_KEY, ids=lambda key: f"{key[0]}-{key[1]}")
def test_every_key_has_a_source_or_none_in_any_bundle(key: Key) -> None:
    assert source_of(key, ()) is None
    for only in OPERATORS:
        entries = keys_of(only)
        source = source_of(key, entries)
        assert source is None or source.answered_by in entries
        if only == key[0]:
            assert source == Source(key=key, answered_by=key)
    assert source_of(key, EVERY_KEY) == Source(key=key, answered_by=key)


def test_sources_by_hand() -> None:
    every = set(EVERY_KEY)
    found = {}
    for key in EVERY_KEY:
        source = source_of(key, every - set(keys_of(key[0])))
        if source is not None:
            details = source.factor, source.gathered, source.alike, source.is_part
            found[key] = (source.answered_by[0], *details)
            per_update = OPERATORS[key[0]].per_update
            assert source.answered_by[1] is (F if per_update else key[1])
    alike = ("residual_add", 1.0, False, True, False)
    rows_moved = ("residual_add", 4.2, False, True, False)
    assert found == {
        ("dropout", F): alike,
        ("dropout", B): alike,
        ("bias_add", F): alike,
        ("bias_add", B): alike,
        ("embedding_mask", F): alike,
        ("embedding_mask", B): alike,
        ("qkv_split", B): alike,
        ("rms_norm", F): ("layer_norm", 1.0, False, True, False),
        ("rms_norm", B): ("layer_norm", 1.0, False, True, False),
        ("rope", F): alike,
        ("rope", B): alike,
        ("swiglu", F): ("gelu", 1.0, False, True, False),
        ("swiglu", B): ("gelu", 1.0, False, True, False),
        ("router", F): alike,
        ("router", B): alike,
        ("copy", F): alike,
        ("copy", B): alike,
        ("permute", F): rows_moved,
        ("permute", B): rows_moved,
        ("unpermute", F): rows_moved,
        ("unpermute", B): rows_moved,
        ("adam", ONCE): alike,
        ("gradient_clip", ONCE): alike,
        ("gradient_zero", ONCE): alike,
        ("gradient_scale", ONCE): alike,
        ("float8_cast", F): alike,
        ("float8_cast", B): alike,
        ("causal_convolution", F): alike,
        ("causal_convolution", B): alike,
        ("state_space_scan", F): ("gated_delta_rule", 1.0, False, False, False),
        ("state_space_scan", B): ("gated_delta_rule", 1.0, False, False, False),
        **{
            (f"gemm_float8_{scaled}", way): ("gemm_float8_tensor", 1.0, False, False, False)
            for scaled in ("row", "block")
            for way in (F, INPUT, WEIGHT)
        },
        **{(f"eager_{fused}", way): alike for fused in ("rms_norm", "rope", "swiglu") for way in (F, B)},
        ("flash_attention_float8", F): ("flash_attention", 0.81, False, False, False),
        ("flash_attention_float8", B): ("flash_attention", 0.86, False, False, False),
        ("attention_block", F): ("flash_attention", 1.0, False, False, False),
        ("attention_block", B): ("flash_attention", 1.0, False, False, False),
        ("grouped_gemm", F): ("gemm", 1.0, False, False, False),
        ("grouped_gemm", INPUT): ("gemm", 1.0, False, False, False),
        ("grouped_gemm", WEIGHT): ("gemm", 1.0, False, False, False),
        **{
            (f"grouped_gemm_{scaled}", way): (f"gemm_{scaled}", 1.0, False, False, False)
            for scaled in ("float8_tensor", "float8_row", "float8_block", "float4_block")
            for way in (F, INPUT, WEIGHT)
        },
        ("all_gather", ONCE): ("all_reduce", 0.5, True, False, False),
        ("reduce_scatter", ONCE): ("all_reduce", 0.5, False, False, False),
    }


def test_gradients_of_a_linear_are_halves_of_their_sum_where_only_that_was_measured() -> None:
    only_sum = {("gemm", F), ("gemm", B)}
    for part in (INPUT, WEIGHT):
        key = "gemm", part
        assert source_of(key, only_sum) == Source(key=key, answered_by=("gemm", B), factor=0.5, is_part=True)
        # What was measured by itself goes before a share of the sum.
        assert source_of(key, {*only_sum, key}) == Source(key=key, answered_by=key)
    assert source_of(("gemm", B), {("gemm", INPUT), ("gemm", WEIGHT)}) is None
    assert is_answered(OPERATORS["gemm"], only_sum)
    assert not is_answered(OPERATORS["gemm"], {("gemm", INPUT), ("gemm", WEIGHT)})


def test_a_pass_that_was_measured_goes_before_what_moves_as_much() -> None:
    name, forward = "causal_convolution", ("causal_convolution", F)
    source = source_of((name, B), {forward, ("residual_add", B)})
    assert source == Source(key=(name, B), answered_by=forward, is_other_pass=True)
    assert source_of((name, B), {("residual_add", B)}) == Source(
        key=(name, B), answered_by=("residual_add", B), alike=True
    )


def test_a_scan_is_asked_as_another_by_what_the_kernels_of_both_move() -> None:
    rule, scan = ("gated_delta_rule", OPERATORS["state_space_scan"])
    entry = Estimator.load("h200-sxm").bundle.entries[rule, F]
    # 8 keys of 128 entries, 64 heads of 64: w = 4096; per token of the delta rule, states of 8192 per chunk of 64.
    vector = (2, 4096, 8, 64, 128, 64)
    delta_rule = 5 * 1024 + 2 * 8192 + 7 * 4096 + 6 * 4096 + 2 * 8192
    for direction in (F, B):
        source = source_of(("state_space_scan", direction), {(rule, F)})
        assert source is not None
        assert source.answered_by == (rule, F)
        asked, factor = source.asked(vector, entry)
        assert asked == vector
        assert factor == pytest.approx(scan.moved_bytes(direction, vector, 1) / (2 * 4096) / delta_rule)


def test_what_is_measured_is_asked(make_bundle: Make) -> None:
    path = make_bundle({"all_reduce": 2.0, "all_gather": 3.0, "reduce_scatter": 4.0})
    estimate = predicted(path, tp=2, sequence_parallel=True)
    assert times_us(estimate)["all_gather"] == 3
    assert times_us(estimate)["reduce_scatter"] == 4
    assert messages(estimate) == []


def test_one_regressor_answers_for_every_group(make_bundle: Make, linear_model: Callable[..., bytes]) -> None:
    path = make_bundle({"all_reduce": linear_model((1, 0, 0), 0)})
    estimate = predicted(path, tp=2, dp=2, zero=0)
    rows = {
        (row.role, row.vector[0]): row.time_us for row in estimate.operators if row.operator == "all_reduce"
    }
    assert {role for role, _ in rows} == {"tensor", "data"}
    assert all(time_us == entries for (_, entries), time_us in rows.items())
    assert messages(estimate) == []


def test_half_an_all_reduce_stands_in(make_bundle: Make, linear_model: Callable[..., bytes]) -> None:
    # 1 µs per entry: 32 entries of b · l · d are 16 on each of two devices.
    path = make_bundle({"all_reduce": linear_model((1, 0, 0), 0)}, without=GATHERS)
    estimate = predicted(path, tp=2, sequence_parallel=True)
    assert times_us(estimate)["all_gather"] == times_us(estimate)["reduce_scatter"] == 16
    (row, *_) = [row for row in estimate.operators if row.operator == "all_gather"]
    assert (row.vector, row.low_us <= 16 <= row.high_us) == ((16, 1, 2), True)
    assert sorted(messages(estimate)) == [
        "all_gather (once): not in the bundle, answered by half of all_reduce of the same size",
        "reduce_scatter (once): not in the bundle, answered by half of all_reduce of the same size",
    ]
    [warning] = [one for one in estimate.warnings if str(one).startswith("reduce")]
    assert warning.to_dict() == {
        "cause": "substituted",
        "operator": "reduce_scatter",
        "direction": "once",
        "kind": "substitute",
        "source": "all_reduce",
        "factor": 0.5,
        "message": messages(estimate)[estimate.warnings.index(warning)],
    }


def test_gradients_of_zero_2_too(make_bundle: Make) -> None:
    path = make_bundle({"all_reduce": 30.0}, without=GATHERS)
    assert times_us(predicted(path, dp=2, zero=2))["reduce_scatter"] == 15
    assert times_us(predicted(path, dp=2, zero=2))["all_gather"] == 15


def test_nothing_stands_in_for_anything_else(make_bundle: Make) -> None:
    path = make_bundle(without=("all_reduce", *GATHERS))
    missing = rf"^bundle {path} has no regressor for {{}} \(once\) \(needed by model tiny\)$"
    with pytest.raises(DataError, match=missing.format("all_reduce")):
        predicted(path, tp=2)
    with pytest.raises(DataError, match=missing.format("reduce_scatter")):
        predicted(path, tp=2, sequence_parallel=True)


def test_questions_without_an_answer_are_problems_and_others_are_answered(make_bundle: Make) -> None:
    path = make_bundle(without=("gelu",))
    known, unknown = (("rope", F), (1, 2, 3, 3, 4), ""), (("gelu", F), (1, 2, 3), "")
    found = ask(Predictor(read_bundle(path)), [unknown, known])
    assert found.problems == {("gelu", F): f"bundle {path} has no regressor for gelu (forward)"}
    assert found.answers[known] == (10, 5, 20)
    assert all(time_us != time_us for time_us in found.answers[unknown])  # NaN
    assert (found.sources, found.concerned) == ({known: ("rope", F)}, {})


def test_roles_share_an_answer_and_each_has_it(make_bundle: Make) -> None:
    predictor = Predictor(read_bundle(make_bundle({("gemm", F): 7.0})))
    both = [(("gemm", F), (1, 2, 3), role) for role in ("qkv", "mlp_down")]
    found = ask(predictor, both)
    assert found.answers == dict.fromkeys(both, (7, 3.5, 14))
    assert found.sources == dict.fromkeys(both, ("gemm", F))


ALIKE = ("bias_add", "qkv_split", "embedding_mask")


def test_elementwise_operators_take_as_long_as_a_residual_addition_that_moves_as_much(
    make_bundle: Make,
) -> None:
    # Every residual addition of the bundle takes 30 µs: it moves 3 elements, and a bias 2 (backward 1),
    # for each one of the product. The workloads in its trained range are all of one element.
    path = make_bundle({"residual_add": 30.0}, without=ALIKE, largest=1.0)
    rows = {
        (row.operator, row.direction, row.vector): row.time_us
        for row in predicted(path).operators
        if row.operator in ALIKE
    }
    assert rows["bias_add", F, (4, 8)] == pytest.approx(30 * 32 * 2 / 3)
    assert rows["bias_add", B, (4, 8)] == pytest.approx(30 * 32 * 1 / 3)
    assert rows["qkv_split", B, (4, 24)] == pytest.approx(30 * 96 * 2 / 3)


def test_warnings_of_elementwise_substitutes(make_bundle: Make) -> None:
    estimate = predicted(make_bundle(without=ALIKE), tp=2)
    found = [message for message in messages(estimate) if message.startswith(ALIKE)]
    assert "bias_add (forward): not in the bundle, answered by residual_add moving as much memory" in found
    assert len(found) == len(set(found)) == 5
    [warning] = [w for w in estimate.warnings if str(w).startswith("qkv_split")]
    assert warning.to_dict() == {
        "cause": "substituted",
        "operator": "qkv_split",
        "direction": "backward",
        "kind": "substitute",
        "source": "residual_add",
        "factor": 1.0,
        "message": str(warning),
    }


def test_the_workload_asked_instead_moves_as_much(make_bundle: Make) -> None:
    entries = read_bundle(make_bundle(without=ALIKE, largest=10_000.0)).entries
    source = source_of(("bias_add", F), entries)
    assert source is not None
    for asked in ((8192, 4608), (3, 5), (1, 1), (9_999, 9_999)):
        (b, l, d), factor = source.asked(asked, entries[source.answered_by])  # noqa: E741
        assert factor * 3 * b * l * d == pytest.approx(2 * asked[0] * asked[1])
        assert 0.3 < factor < 1.5  # near: the workloads are whole numbers
        assert all(1 <= size <= 10_000 for size in (b, l, d))


def test_without_a_residual_addition_they_are_left_out(make_bundle: Make) -> None:
    keys = [key for name in ALIKE for key in keys_of(name)]
    entries = read_bundle(make_bundle(without=[*ALIKE, "residual_add"])).entries
    assert source_of(("bias_add", F), entries) is None
    assert left_out(keys, entries) == set(ALIKE)
    assert left_out(keys, read_bundle(make_bundle(without=ALIKE, name="more.kcast")).entries) == set()


def test_a_linear_s_gradients_are_products_too(make_bundle: Make, linear_model: Callable[..., bytes]) -> None:
    # 1 µs per row, 100 per column in, 10,000 per column out.
    path = make_bundle(
        {"gemm": linear_model([1.0, 100.0, 10_000.0], 0)}, without=[("gemm", INPUT), ("gemm", WEIGHT)]
    )
    bundle = read_bundle(path)
    (m, k, n), keys = (2, 3, 5), [("gemm", INPUT), ("gemm", WEIGHT)]
    found = ask(Predictor(bundle), [(key, (m, k, n), "qkv") for key in keys])
    times = [found.answers[key, (m, k, n), "qkv"][0] for key in keys]
    assert times == pytest.approx([m + 100 * n + 10_000 * k, k + 100 * m + 10_000 * n])
    assert [str(warning) for warning in found.concerned] == [
        f"gemm ({direction}): not in the bundle, answered by forward of the same product"
        for direction in ("input_gradient", "weight_gradient")
    ]
    assert is_answered(OPERATORS["gemm"], bundle.entries)


def test_the_other_pass_is_asked_for_what_was_measured(
    make_bundle: Make, linear_model: Callable[..., bytes]
) -> None:
    """A million µs per key-value head: evaluated with one per query head if all measured rows have that.

    Five products instead of two, and a fifth longer for each.
    """
    key, vector = ("flash_attention", B), (1, 4, 8, 2, 16)
    path = make_bundle({("flash_attention", F): linear_model([0, 0, 0, 1e6, 0], 0)}, without=[key])
    bundle = read_bundle(path)
    entries = [
        replace(entry, equal_features=("kv_heads", "heads")) if entry.key == ("flash_attention", F) else entry
        for entry in bundle.manifest.regressors
    ]
    equal = path.with_name("equal.kcast")
    write_bundle(equal, replace(bundle.manifest, regressors=tuple(entries)), bundle.files)
    found = ask(Predictor(read_bundle(equal)), [(key, vector, "")])
    assert found.answers[key, vector, ""][0] == pytest.approx(8e6 * 5 / 2 * 1.2)
    assert {warning.kind for warning in found.concerned} == {"substitute", "equal_features"}
