"""What answers for an operator that a bundle lacks: which regressor, with which factor, and with which warning."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import Cluster, DataError, Estimate, Estimator, ModelConfig, Parallelism, read_bundle
from kernelcast.runtime.answers.asking import ask
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.answers.sources import Source, is_answered, left_out, source_of
from kernelcast.runtime.bundle.file import Bundle, write_bundle
from kernelcast.runtime.estimate.explanation import explain_operator
from kernelcast.runtime.operators import OPERATORS, Direction, Key
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.space import Space
from kernelcast.runtime.search.sweep import sweep

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
    # Whatever is asked of the bundle's residual addition takes 30 µs: it moves 3 elements, and a bias 2 (backward 1),
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
    """A million µs per key-value head: asked with one per query head if all measured rows have that.

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
