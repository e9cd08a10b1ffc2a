"""Exported regressors answer in ONNX Runtime what they answer in Python, and nothing else than that is let through."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from sklearn.ensemble import RandomForestRegressor

from kernelcast.runtime import DataError
from kernelcast.runtime.bundle.regressor_entry import Interval
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.train import export
from kernelcast.train.baseline import Roofline
from kernelcast.train.dataset import Array, Table
from kernelcast.train.export import ML_OPSET, OPSET, PARITY_TOLERANCE
from kernelcast.train.intervals import log_half_widths
from kernelcast.train.regressor import Candidate, Regressor, all_candidates, fit

CANDIDATES = all_candidates().every

FORWARD, BACKWARD, ONCE = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE
KEYS = [
    ("embedding", BACKWARD),
    ("gemm", FORWARD),
    ("batched_gemm", BACKWARD),
    ("flash_attention", FORWARD),
    ("all_gather", ONCE),
    ("adam", ONCE),
]
INTERVAL = Interval.of_all(0.25)
PROPERTIES = {"unit": "microseconds", "operator": "some"}
candidates = pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda c: f"{c.form}-{c.algorithm}")


def fits(candidate: Candidate, operator: str) -> bool:
    """Whether a candidate is for an operator: one form is a collective's own."""
    return OPERATORS[operator].is_collective or candidate.form != "latency_bandwidth"


def to_onnx(regressor: Regressor, interval: Interval = INTERVAL) -> bytes:
    return export.to_onnx(regressor, interval, PROPERTIES)


def check_parity(
    model: bytes, regressor: Regressor, table: Table, seed: int, interval: Interval = INTERVAL
) -> float:
    return export.check_parity(model, regressor, interval, table, seed)


def answers(model: bytes, workloads: Array) -> Array:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (times_us,) = session.run(["time_us"], {"workload": workloads.astype(np.float32)})
    return np.asarray(times_us[:, 0], dtype=np.float64)


@pytest.mark.parametrize(
    ("candidate", "operator", "direction"), [(c, *key) for c in CANDIDATES for key in KEYS if fits(c, key[0])]
)
def test_parity(
    make_table: Callable[..., Table], candidate: Candidate, operator: str, direction: Direction
) -> None:
    table = make_table(operator, direction, noise=0.2)
    regressor = fit(candidate, table, 3)
    model = to_onnx(regressor)
    assert check_parity(model, regressor, table, 3) <= PARITY_TOLERANCE
    # More than the check itself asks: rows far beyond the samples, and rows with a feature of 0.
    odd = np.concatenate([30 * table.workloads, table.workloads])
    odd[20:, -1] = 0
    assert answers(model, odd) == pytest.approx(regressor.predict_us(odd), rel=PARITY_TOLERANCE)


@candidates
def test_the_same_regressor_gives_the_same_bytes(
    make_table: Callable[..., Table], candidate: Candidate
) -> None:
    table = make_table(noise=0.2)
    regressor = fit(candidate, table, 3)
    assert to_onnx(regressor) == to_onnx(regressor) == to_onnx(fit(candidate, table, 3))


@candidates
def test_the_graph_is_what_the_runtime_expects(
    make_table: Callable[..., Table], candidate: Candidate
) -> None:
    model = onnx.load_from_string(to_onnx(fit(candidate, make_table(noise=0.2), 3)))
    onnx.checker.check_model(model, full_check=True)
    [given_input], outputs = model.graph.input, model.graph.output
    assert [output.name for output in outputs] == ["time_us", "low_us", "high_us"]
    for value, name, last in (
        (given_input, "workload", 3),
        *((output, output.name, 1) for output in outputs),
    ):
        assert value.name == name
        assert value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        rows, columns = value.type.tensor_type.shape.dim
        assert rows.dim_param == "rows"
        assert columns.dim_value == last
    assert {entry.domain: entry.version for entry in model.opset_import} == {
        "": OPSET,
        "ai.onnx.ml": ML_OPSET,
    }
    read = {name for node in model.graph.node for name in node.input}
    assert {constant.name for constant in model.graph.initializer} <= read
    properties = {entry.key: entry.value for entry in model.metadata_props}
    assert properties == PROPERTIES


@candidates
def test_the_largest_workloads_stay_finite(make_table: Callable[..., Table], candidate: Candidate) -> None:
    for operator, direction, largest in (
        ("gemm", BACKWARD, (8192, 8192, 49152)),
        ("all_reduce", ONCE, (1_200_000_000, 8, 8)),
        ("batched_gemm", BACKWARD, (512, 32768, 256, 32768)),
    ):
        if not fits(candidate, operator):
            continue
        table = make_table(operator, direction, noise=0.2)
        top = np.array([largest], dtype=np.float64)
        grown = replace(
            table,
            workloads=np.concatenate([table.workloads, top]),
            times_us=np.append(table.times_us, 20 + top.prod() / 1e5),
        )
        for trained in (table, grown):
            regressor = fit(candidate, trained, 3)
            [asked] = answers(to_onnx(regressor), top)
            assert 0 < asked < 1e15
            assert asked == pytest.approx(regressor.predict_us(top)[0], rel=PARITY_TOLERANCE)


@candidates
def test_splits_between_neighbouring_numbers_fall_alike(candidate: Candidate) -> None:
    # Entries that differ by the last bit of float32, whose middle is no float32.
    entries = 2.0**24 + 2 + 2 * np.arange(24)
    workloads = np.column_stack([entries, np.ones(24), np.full(24, 2.0)])
    times_us = np.where(np.arange(24) % 2 == 0, 100.0, 900.0) * (1 + np.arange(24))
    table = Table(operator="all_reduce", direction=ONCE, workloads=workloads, times_us=times_us)
    regressor = fit(candidate, table, 3)
    assert check_parity(to_onnx(regressor), regressor, table, 3) <= PARITY_TOLERANCE


@pytest.mark.parametrize("knee", [7e3, 7e5, 3.3e8])
def test_a_steep_knee_keeps_parity(knee: float) -> None:
    """Just above a knee the difference of two large numbers counts."""
    # The time at the knee is 100 µs; above, elements take up to 30 times as long as below.
    nothing = RandomForestRegressor(n_estimators=1).fit(np.zeros((2, 3)), np.zeros(2))
    entries = np.unique(np.concatenate([np.round(knee / 7 * np.linspace(0.9, 1.1, 400)), np.full(1, 5e7)]))
    workloads = np.column_stack([entries, np.full(len(entries), 3.0)])
    for slope in (1, 5, 30):
        baseline = Roofline(
            powers=((1, 0), (0, 1)),
            weights_us=(7 * 80 / knee, 1.0),
            constant_us=17.0,
            traffic=((7.0, (1, 0)),),
            knees=(knee / 10, knee),
            knee_weights_us=(0.0, slope * 80 / knee),
        )
        regressor = Regressor(candidate=CANDIDATES[0], operator="adam", baseline=baseline, trees=nothing)
        answered = answers(to_onnx(regressor), workloads)
        assert answered == pytest.approx(regressor.predict_us(workloads), rel=PARITY_TOLERANCE / 3)


def tampered(model: bytes, name: str, value: float) -> bytes:
    """The model with the first entry of a constant changed."""
    changed = onnx.load_from_string(model)
    [constant] = [tensor for tensor in changed.graph.initializer if tensor.name == name]
    values = numpy_helper.to_array(constant).copy()
    values.flat[0] = value
    constant.CopyFrom(numpy_helper.from_array(values, name))
    return changed.SerializeToString()


def last_float_constant(model: bytes) -> str:
    floats = [
        t.name
        for t in onnx.load_from_string(model).graph.initializer
        if t.data_type == onnx.TensorProto.FLOAT
    ]
    return floats[-1]


@pytest.mark.parametrize("candidate", CANDIDATES[::4], ids=lambda c: c.form)
@pytest.mark.parametrize("value", [9.0, float("nan"), float("inf")])
def test_a_model_that_answers_otherwise_is_refused(
    make_table: Callable[..., Table], candidate: Candidate, value: float
) -> None:
    table = make_table(noise=0.2)
    regressor = fit(candidate, table, 3)
    model = to_onnx(regressor)
    with pytest.raises(
        DataError,
        match=r"^gemm \(forward\): ONNX answers (time|low|high)_us that differs from Python's by .*, "
        r"expected at most 1e-04$",
    ):
        check_parity(tampered(model, last_float_constant(model), value), regressor, table, 3)


def test_a_model_of_another_regressor_is_refused(make_table: Callable[..., Table]) -> None:
    table = make_table(noise=0.2)
    one, other = fit(CANDIDATES[-1], table, 3), fit(CANDIDATES[-2], table, 3)
    with pytest.raises(DataError, match=r"ONNX answers time_us that differs from Python's by"):
        check_parity(to_onnx(other), one, table, 3)


@pytest.mark.parametrize(
    "damage", [lambda model: b"", lambda model: model[: len(model) // 2], lambda model: b"x" * 99]
)
def test_a_model_that_cannot_be_run_is_one_line(
    make_table: Callable[..., Table], damage: Callable[[bytes], bytes]
) -> None:
    table = make_table(noise=0.2)
    regressor = fit(CANDIDATES[0], table, 3)
    with pytest.raises(DataError, match=r"^gemm \(forward\): the exported model cannot be run \(") as caught:
        check_parity(damage(to_onnx(regressor)), regressor, table, 3)
    assert "\n" not in str(caught.value)


def test_trees_that_convert_to_something_else_are_refused(
    make_table: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    regressor = fit(CANDIDATES[0], make_table(), 3)
    monkeypatch.setattr(
        export,
        "convert_sklearn",
        lambda *_, **__: onnx.load_from_string(to_onnx(fit(CANDIDATES[1], make_table(), 3))),
    )
    with pytest.raises(DataError, match=r"^gemm: trees converted to Gather, .*, expected one TreeEnsemble"):
        to_onnx(regressor)


@candidates
def test_another_runtime_answers_the_same(make_table: Callable[..., Table], candidate: Candidate) -> None:
    """ONNX's own reference implementation, in numpy: what the graph says does not depend on ONNX Runtime."""
    table = make_table("all_reduce", ONCE, 24, noise=0.2)
    regressor = fit(candidate, table, 3)
    interval = Interval(
        method="cross_conformal",
        level=0.9,
        by="size",
        size_bounds=(4096.0,),
        layouts=(),
        log_half_widths=(0.5, 0.1),
    )
    evaluator = ReferenceEvaluator(to_onnx(regressor, interval))
    found = evaluator.run(None, {"workload": table.workloads.astype(np.float32)})
    expected_us = regressor.predict_us(table.workloads)
    factors = np.exp(log_half_widths(interval, table.workloads))
    assert len(set(factors)) == 2
    for answer, expected in zip(
        found, (expected_us, expected_us / factors, expected_us * factors), strict=True
    ):
        assert answer.shape == (24, 1)
        assert answer[:, 0] == pytest.approx(expected, rel=PARITY_TOLERANCE)


PROGRAM = """
import sys
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
workload = numpy.array([[64, 512, 512], [8192, 8192, 49152]], dtype=numpy.float32)
(times_us,) = session.run(["time_us"], {"workload": workload})
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"sklearn", "xgboost", "onnx", "skl2onnx", "onnxmltools", "scipy", "kernelcast"}, loaded
print(*times_us[:, 0].tolist())
"""


def test_a_model_needs_nothing_but_onnx_runtime(make_table: Callable[..., Table], tmp_path: Path) -> None:
    regressor = fit(CANDIDATES[-1], make_table(noise=0.2), 3)
    file = tmp_path / "model.onnx"
    file.write_bytes(to_onnx(regressor))
    command = [sys.executable, "-c", PROGRAM, str(file)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    expected_us = regressor.predict_us(np.array([[64.0, 512.0, 512.0], [8192.0, 8192.0, 49152.0]]))
    assert [float(text) for text in found] == pytest.approx(expected_us, rel=PARITY_TOLERANCE)
