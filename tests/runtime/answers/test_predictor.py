"""Regressors answered by real ONNX models, and everything that a model can do wrong."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from kernelcast.runtime import DataError, UsageError, read_bundle
from kernelcast.runtime.answers.predictor import Answer, Predictor, Vector
from kernelcast.runtime.operators import Direction

GELU, FORWARD = "gelu", Direction.FORWARD
Make = Callable[..., Path]
Model = Callable[..., bytes]


def predictor(path: Path) -> Predictor:
    return Predictor(read_bundle(path))


def test_answers_in_the_order_asked(make_bundle: Make, linear_model: Model) -> None:
    asked = predictor(make_bundle({(GELU, FORWARD): linear_model((1, 10, 100), 0.5)}))
    answers = asked.predict_us(GELU, FORWARD, np.array([[1, 2, 3], [4, 5, 6], [1, 2, 3]], dtype=np.float32))
    assert answers.dtype == np.float64
    assert answers.tolist() == [321.5, 654.5, 321.5]
    assert asked.predict_us(GELU, Direction.BACKWARD, [[1, 2, 3]]).tolist() == [20.0]
    assert asked.predict_us(GELU, FORWARD, np.empty((0, 3))).tolist() == []


def test_times_come_with_their_interval(make_bundle: Make, linear_model: Model) -> None:
    asked = predictor(make_bundle({(GELU, FORWARD): linear_model((1, 10, 100), 0, low=0.75, high=1.5)}))
    answers = asked.answers(GELU, FORWARD, [[1, 2, 3], [4, 5, 6], [1, 2, 3]])
    assert answers.dtype == np.float64
    assert answers.tolist() == [[321.0, 240.75, 481.5], [654.0, 490.5, 981.0], [321.0, 240.75, 481.5]]
    # What is remembered is all of it.
    assert asked.answers_of(GELU, FORWARD, [(4, 5, 6)]) == {(4, 5, 6): (654.0, 490.5, 981.0)}
    assert asked.answers(GELU, FORWARD, np.empty((0, 3))).shape == (0, 3)


def test_distinct_workloads_are_asked_once(make_bundle: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, runs = predictor(make_bundle()), []
    run = Predictor._run

    def counted(self: Predictor, key: tuple[str, Direction], vectors: list[Vector]) -> list[Answer]:
        runs.append(vectors)
        return run(self, key, vectors)

    monkeypatch.setattr(Predictor, "_run", counted)
    asked.predict_us(GELU, FORWARD, [[1, 2, 3], [4, 5, 6], [1, 2, 3]])
    asked.predict_us(GELU, FORWARD, [[4, 5, 6], [7, 8, 9]])
    asked.predict_us(GELU, FORWARD, [[4, 5, 6], [7, 8, 9]])
    assert runs == [[(1, 2, 3), (4, 5, 6)], [(7, 8, 9)]]


def test_what_is_remembered_is_bounded(make_bundle: Make) -> None:
    asked = Predictor(read_bundle(make_bundle()), remembered=10)
    for start in range(0, 60, 6):
        vectors = [[start + i, 1, 1] for i in range(6)]
        assert asked.predict_us(GELU, FORWARD, vectors).tolist() == [10.0] * 6
        assert asked.predict_us(GELU, Direction.BACKWARD, vectors[:2]).tolist() == [20.0] * 2
        assert sum(map(len, asked._remembered.values())) <= 10


def test_many_threads_get_the_same_answers(make_bundle: Make, linear_model: Model) -> None:
    asked = predictor(make_bundle({(GELU, FORWARD): linear_model((1, 10, 100), 0)}))

    def ask(seed: int) -> list[float]:
        return asked.predict_us(GELU, FORWARD, [[1 + (seed + i) % 7, 2, 3] for i in range(20)]).tolist()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(64)))
    assert answers == [[320.0 + 1 + (seed + i) % 7 for i in range(20)] for seed in range(64)]


def test_missing_regressors_and_wrong_vectors(make_bundle: Make) -> None:
    asked = predictor(make_bundle(without=("rope",)))
    with pytest.raises(DataError, match=r"test\.kcast has no regressor for rope \(forward\)$"):
        asked.predict_us("rope", FORWARD, [[1, 2, 3, 4]])
    with pytest.raises(
        UsageError, match=r"^gelu \(forward\): vectors of shape \(1, 2\), expected finite \[n, b, l"
    ):
        asked.predict_us(GELU, FORWARD, [[1, 2]])
    with pytest.raises(UsageError, match=r"expected finite"):
        asked.predict_us(GELU, FORWARD, [[1, 2, np.nan]])


@pytest.mark.parametrize("answer", [0.0, -3.0, 1e-38, 1e29, 3.4e38])
def test_times_that_cannot_be_are_refused(make_bundle: Make, answer: float) -> None:
    asked = predictor(make_bundle({(GELU, FORWARD): answer}))
    with pytest.raises(
        DataError, match=r"gelu \(forward\) answers .* µs for workload \[1, 2, 3\], expected a pos"
    ):
        asked.answers_of(GELU, FORWARD, [(1, 2, 3)])


@pytest.mark.parametrize(
    ("low", "high"),
    [(1.5, 2.0), (0.5, 0.75), (2.0, 0.5), (0.0, 2.0), (0.5, 3e38)],
)
def test_intervals_that_cannot_be_are_refused(
    make_bundle: Make, linear_model: Model, low: float, high: float
) -> None:
    asked = predictor(make_bundle({(GELU, FORWARD): linear_model((0, 0, 0), 8, low=low, high=high)}))
    most = 8 * high if high < 3e38 else math.inf
    expected = (
        rf"gelu \(forward\) answers 8 \({8 * low:g} to {most:g}\) µs for workload \[1.*expected a positive"
    )
    with pytest.raises(DataError, match=expected):
        asked.predict_us(GELU, FORWARD, [[1, 2, 3]])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_constants_that_are_no_number_are_refused(
    make_bundle: Make, linear_model: Model, number: float
) -> None:
    for model in (linear_model((0, number, 0), 8), linear_model((0, 0, 0), 8, high=number)):
        asked = predictor(make_bundle({(GELU, FORWARD): model}))
        with pytest.raises(
            DataError, match=r"gelu \(forward\) is refused: constant '.*' has numbers that are not fin"
        ):
            asked.predict_us(GELU, FORWARD, [[1, 2, 3]])


def test_models_that_break_the_contract(make_bundle: Make, linear_model: Model) -> None:
    for model, message in (
        (
            b"no model at all",
            r"the model of gelu \(forward\) is refused: the model has field 13 of wire type 6",
        ),
        (
            linear_model((1, 1, 1), 0, output="seconds"),
            r"maps \['workload'\] to \['seconds', 'low_us', 'high_us'\], expected \['workload'\] to \['time_us', ",
        ),
        (
            linear_model((1, 1), 0),
            r"is refused: MatMul has inputs of shapes \[rows, 3\], \[2, 1\], which do not",
        ),
    ):
        asked = predictor(make_bundle({(GELU, FORWARD): model}))
        with pytest.raises(DataError, match=message) as caught:
            asked.predict_us(GELU, FORWARD, [[1, 2, 3]])
        assert "\n" not in str(caught.value)


def test_answers_of_another_shape_are_refused(make_bundle: Make) -> None:
    from onnx import TensorProto, helper

    names = ("time_us", "low_us", "high_us")
    graph = helper.make_graph(
        [helper.make_node("Identity", ["workload"], [name]) for name in names],
        "identity",
        [helper.make_tensor_value_info("workload", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in names],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    asked = predictor(make_bundle({(GELU, FORWARD): model.SerializeToString()}))
    with pytest.raises(DataError, match=r"answers float32 \(4, 3\), expected float32 \(4, 1\)$"):
        asked.predict_us(GELU, FORWARD, [[1, 2, 3]])


def test_all_models_can_be_loaded_without_asking(make_bundle: Make) -> None:
    asked = predictor(make_bundle())
    asked.load()
    broken = predictor(make_bundle({(GELU, FORWARD): b"no model"}))
    with pytest.raises(DataError, match=r"the model of gelu \(forward\) is refused: "):
        broken.load()


def test_the_longest_time(make_bundle: Make) -> None:
    year_us = 365.25 * 86_400e6
    assert predictor(make_bundle({GELU: 99.9 * year_us})).predict_us(GELU, FORWARD, [[1, 1, 1]]) > 0
    with pytest.raises(DataError, match="expected a positive time within its interval, at most 100 years"):
        predictor(make_bundle({GELU: 100.1 * year_us})).predict_us(GELU, FORWARD, [[1, 1, 1]])
