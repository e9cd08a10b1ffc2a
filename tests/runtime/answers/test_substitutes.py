"""Collectives that a bundle lacks: what answers for them, with which factor, and what is said about it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import Cluster, DataError, Estimate, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.answers.left_out import lacking
from kernelcast.runtime.answers.substitutes import substitute
from kernelcast.runtime.bundle.file import RegressorEntry
from kernelcast.runtime.operators import Direction

Make = Callable[..., Path]
ONCE = Direction.ONCE
GATHERS = ("mp_all_gather", "mp_reduce_scatter", "dp_all_gather", "dp_reduce_scatter")
TINY = ModelConfig(
    name="tiny", hidden_size=8, sequence_length=4, attention_heads=2, layers=4, vocabulary_size=100
)


def ask(path: Path, **layout: Any) -> Estimate:
    return Estimator.load(path).predict(
        model=TINY,
        parallelism=Parallelism(**{"pp": 1, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 1} | layout),
        cluster=Cluster(gpus_per_node=2),
    )


def times_us(estimate: Estimate) -> dict[str, float]:
    return {row.operator: row.time_us for row in estimate.operators if row.direction is ONCE}


def messages(estimate: Estimate) -> list[str]:
    return [str(warning) for warning in estimate.warnings]


def test_what_is_measured_is_asked(make_bundle: Make) -> None:
    estimate = ask(
        make_bundle({"mp_all_gather": 3.0, "mp_reduce_scatter": 4.0}), tp=2, sequence_parallel=True
    )
    assert times_us(estimate)["mp_all_gather"] == 3
    assert times_us(estimate)["mp_reduce_scatter"] == 4
    assert messages(estimate) == []


def test_the_other_group_serves(make_bundle: Make) -> None:
    path = make_bundle({"dp_all_gather": 3.0, "dp_reduce_scatter": 4.0}, without=GATHERS[:2])
    estimate = ask(path, tp=2, sequence_parallel=True)
    assert times_us(estimate)["mp_all_gather"] == 3
    assert times_us(estimate)["mp_reduce_scatter"] == 4
    assert messages(estimate) == [
        "mp_reduce_scatter (once): not in the bundle, answered by dp_reduce_scatter of the same size",
        "mp_all_gather (once): not in the bundle, answered by dp_all_gather of the same size",
    ]
    assert estimate.warnings[0].to_dict() == {
        "operator": "mp_reduce_scatter",
        "direction": "once",
        "kind": "substitute",
        "source": "dp_reduce_scatter",
        "factor": 1.0,
        "message": messages(estimate)[0],
    }


def test_half_an_all_reduce_stands_in(make_bundle: Make, linear_model: Callable[..., bytes]) -> None:
    # 1 µs per entry: 32 entries of b · l · d are 16 on each of two devices.
    path = make_bundle({"mp_all_reduce": linear_model((1, 0, 0), 0)}, without=GATHERS)
    estimate = ask(path, tp=2, sequence_parallel=True)
    assert times_us(estimate)["mp_all_gather"] == times_us(estimate)["mp_reduce_scatter"] == 16
    (row, *_) = [row for row in estimate.operators if row.operator == "mp_all_gather"]
    assert (row.vector, row.low_us <= 16 <= row.high_us) == ((16, 1, 2), True)
    assert messages(estimate)[1] == (
        "mp_all_gather (once): not in the bundle, answered by half of mp_all_reduce of the same size"
    )


def test_gradients_of_zero_2_too(make_bundle: Make) -> None:
    path = make_bundle({"dp_all_reduce": 30.0}, without=GATHERS)
    assert times_us(ask(path, dp=2, zero=2))["dp_reduce_scatter"] == 15
    assert times_us(ask(path, dp=2, zero=2))["dp_all_gather"] == 15


def test_nothing_stands_in_for_anything_else(make_bundle: Make) -> None:
    path = make_bundle(without=("mp_all_reduce", *GATHERS))
    with pytest.raises(
        DataError, match=r"has no regressor for mp_all_reduce \(once\), which model tiny needs$"
    ):
        ask(path, tp=2)
    path = make_bundle(without=("mp_all_reduce", "dp_all_reduce", *GATHERS), name="less.kcast")
    with pytest.raises(
        DataError, match=r"no regressor for mp_reduce_scatter \(once\), which model tiny needs$"
    ):
        ask(path, tp=2, sequence_parallel=True)


def test_the_nearest_training_answers(regressor: Callable[..., RegressorEntry]) -> None:
    def entry(name: str, low: float, high: float, *layouts: tuple[int, int]) -> RegressorEntry:
        made = regressor((name, ONCE), b"model", largest=8)
        ranges = ((low, high), *made.training_range[1:])
        return type(made).from_dict(
            made.to_dict()
            | {"training_range": [list(r) for r in ranges], "layouts": [list(x) for x in layouts]}
        )

    def source(*entries: RegressorEntry) -> str:
        found = substitute("mp_all_gather", (100, 1, 4), {one.key: one for one in entries})
        return "" if found is None else f"{found.source} {found.factor}"

    gather, reduce = entry("dp_all_gather", 10, 1000), entry("mp_all_reduce", 100, 1000)
    assert source(gather, reduce) == "dp_all_gather 1.0"
    assert source(reduce) == "mp_all_reduce 0.5"
    assert source() == ""
    # The gather was trained on larger shards only; the all-reduce on these 400 entries.
    assert source(entry("dp_all_gather", 500, 1000), reduce) == "mp_all_reduce 0.5"
    # Nearer is better, also where both are outside.
    assert source(entry("dp_all_gather", 120, 1000), entry("mp_all_reduce", 1, 200)) == "dp_all_gather 1.0"
    # A layout that was measured goes before one that was not.
    measured, elsewhere = entry("mp_all_reduce", 500, 1000, (1, 4)), entry("dp_all_gather", 10, 1000, (2, 2))
    assert source(elsewhere, measured) == "mp_all_reduce 0.5"


ALIKE = ("bias_add", "qkv_split", "embedding_mask")


def test_elementwise_operators_take_as_long_as_a_residual_addition_that_moves_as_much(
    make_bundle: Make,
) -> None:
    # Whatever is asked of the bundle's residual addition takes 30 µs: it moves 3 elements, and a bias 2 (backward 1),
    # for each one of the product. The workloads in its trained range are all of one element.
    path = make_bundle({"residual_add": 30.0}, without=ALIKE, largest=1.0)
    estimate = ask(path, micro_batch=1)
    rows = {
        (row.operator, row.direction, row.vector): row.time_us
        for row in estimate.operators
        if row.operator in ALIKE
    }
    assert rows["bias_add", Direction.FORWARD, (4, 8)] == pytest.approx(30 * 32 * 2 / 3)
    assert rows["bias_add", Direction.BACKWARD, (4, 8)] == pytest.approx(30 * 32 * 1 / 3)
    assert rows["qkv_split", Direction.BACKWARD, (4, 24)] == pytest.approx(30 * 96 * 2 / 3)


def test_what_answers_for_them_is_said(make_bundle: Make) -> None:
    estimate = ask(make_bundle(without=ALIKE), tp=2)
    said = [message for message in messages(estimate) if message.startswith(ALIKE)]
    assert "bias_add (forward): not in the bundle, answered by residual_add moving as much memory" in said
    assert len(said) == len(set(said)) == 5
    [warning] = [w for w in estimate.warnings if str(w).startswith("qkv_split")]
    assert warning.to_dict() == {
        "operator": "qkv_split",
        "direction": "backward",
        "kind": "substitute",
        "source": "residual_add",
        "factor": 1.0,
        "message": str(warning),
    }


def test_the_workload_asked_instead_moves_as_much(make_bundle: Make) -> None:
    entries = Estimator.load(make_bundle(without=ALIKE, largest=10_000.0)).bundle.entries
    for asked in ((8192, 4608), (3, 5), (1, 1), (9_999, 9_999)):
        found = substitute("bias_add", asked, entries, Direction.FORWARD)
        assert found is not None
        b, l, d = found.vector(asked)  # noqa: E741
        assert found.factor * 3 * b * l * d == pytest.approx(2 * asked[0] * asked[1])
        assert 0.3 < found.factor < 1.5  # near: the workloads are whole numbers
        assert all(1 <= size <= 10_000 for size in (b, l, d))


def test_without_a_residual_addition_they_are_left_out(make_bundle: Make) -> None:
    entries = Estimator.load(make_bundle(without=[*ALIKE, "residual_add"])).bundle.entries
    assert substitute("bias_add", (8, 8), entries, Direction.FORWARD) is None
    assert set(ALIKE) <= lacking(entries)
    assert not set(ALIKE) & lacking(Estimator.load(make_bundle(without=ALIKE)).bundle.entries)
