"""Fixtures for tests of every part: real bundles with tiny ONNX models, whose answers are known by hand."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from kernelcast.runtime.bundle.file import Manifest, RegressorEntry, write_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint
from kernelcast.runtime.bundle.regressor_entry import Interval
from kernelcast.runtime.operators import OPERATORS, Direction, Key

if TYPE_CHECKING:
    from kernelcast.train.regressor import Candidate

# No deadline: how long an example takes depends on the machine. The same examples each time: a submission is not
# refused by chance. Laws that need more examples set their own number;
# `--hypothesis-profile=thorough` runs more of all others, at random.
settings.register_profile("kernelcast", deadline=None, max_examples=40, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("kernelcast")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest first, so that no worker waits for another at the end."""
    minutes: Counter[Path] = Counter()
    for item in items:
        slow = item.get_closest_marker("slow")
        minutes[item.path] += slow.kwargs.get("minutes", 0.0) if slow else 0.0
    items.sort(key=lambda item: minutes[item.path], reverse=True)


def linear_model(
    weights: Sequence[float],
    constant: float,
    *,
    output: str = "time_us",
    low: float = 0.5,
    high: float = 2.0,
) -> bytes:
    """An ONNX model: time_us = workload · weights + constant, low_us and high_us these multiples of it."""
    return _linear_model(tuple(map(float, weights)), float(constant), output, float(low), float(high))


@cache
def _linear_model(weights: tuple[float, ...], constant: float, output: str, low: float, high: float) -> bytes:
    from onnx import TensorProto, helper

    columns = len(weights)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["workload", "weights"], ["product"]),
            helper.make_node("Add", ["product", "constant"], [output]),
            helper.make_node("Mul", [output, "low"], ["low_us"]),
            helper.make_node("Mul", [output, "high"], ["high_us"]),
        ],
        "linear",
        [helper.make_tensor_value_info("workload", TensorProto.FLOAT, ["N", columns])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 1])
            for name in (output, "low_us", "high_us")
        ],
        [
            helper.make_tensor("weights", TensorProto.FLOAT, [columns, 1], weights),
            helper.make_tensor("constant", TensorProto.FLOAT, [1], [constant]),
            helper.make_tensor("low", TensorProto.FLOAT, [1], [low]),
            helper.make_tensor("high", TensorProto.FLOAT, [1], [high]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    serialised: bytes = model.SerializeToString()
    return serialised


def regressor(key: Key, model: bytes, *, largest: float = 1e12) -> RegressorEntry:
    """An entry for `model`, trained from 1 to `largest` in every feature."""
    operator, direction = key
    return RegressorEntry.for_model(
        model,
        operator=operator,
        direction=direction,
        dtype="float32",
        training_range=((1.0, largest),) * len(OPERATORS[operator].features),
        algorithm="linear",
        form="time",
        hyperparameters={"depth": 0, "note": "written by a test"},
        validation_error=0.0,
        interval=Interval.of_all(math.log(2.0)),
        rows=1,
        statistic="quiet",
        table_digest="0123456789abcdef",
        recipe_digest="fedcba9876543210",
    )


def manifest(
    entries: Sequence[RegressorEntry],
    *,
    fabric: Sequence[FabricFingerprint] = (),
    compute: Sequence[ComputeFingerprint] = (),
    dtype: str = "float32",
) -> Manifest:
    """A manifest for `entries`."""
    return Manifest(
        kernelcast_version="0.1.0",
        created_at="2026-01-01T00:00:00+00:00",
        dtype=dtype,
        statistic="quiet",
        compute=tuple(compute),
        fabric=tuple(fabric),
        software=(),
        dataset_digest="0123456789abcdef",
        seed=7,
        regressors=tuple(entries),
    )


# Bundles by their arguments: hundreds of tests use the same.
_written: dict[object, bytes] = {}


@pytest.fixture
def make_bundle(tmp_path: Path, make_bundle_in: Callable[[Path], Callable[..., Path]]) -> Callable[..., Path]:
    """Writes a bundle into the test's folder, as `make_bundle_in` does."""
    return make_bundle_in(tmp_path)


@pytest.fixture(scope="session")
def make_bundle_in() -> Callable[[Path], Callable[..., Path]]:
    """For tests that share a bundle: what writes bundles into a folder."""
    return bundle_maker


def bundle_maker(folder: Path) -> Callable[..., Path]:
    """Writes a bundle where every operator takes 10 µs forward, 20 µs backward, 5 µs where it has one time.

    A linear's backward is 10 µs for either gradient. `times` gives other operators (all directions) or (operator,
    direction) a constant time in µs or a model; `without` leaves operators or (operator, direction) out. Optional ones
    take `optional_us`, next to no time, so that steps can be added up by hand. The sum of a linear's gradients
    is included where `times` names it.
    """

    def make(
        times: Mapping[str | Key, float | bytes] | None = None,
        *,
        without: Sequence[str | Key] = (),
        fabric: Sequence[FabricFingerprint] = (),
        compute: Sequence[ComputeFingerprint] = (),
        dtype: str = "float32",
        largest: float = 1e12,
        name: str = "test.kcast",
        optional_us: float = 1e-9,
    ) -> Path:
        times = times or {}
        named = {one if isinstance(one, str) else one[0] for one in (*times, *without)}
        assert named <= set(OPERATORS), f"{named - set(OPERATORS)} are no operators"
        path = folder / name
        table = tuple((operator.name, *operator.costs) for operator in OPERATORS.values())
        asked = (table, *map(tuple, (times.items(), without, fabric, compute)), dtype, largest, optional_us)
        if asked in _written:
            # Renamed as in `write_bundle`: a file that is open elsewhere stays as it is.
            path.with_suffix(".new").write_bytes(_written[asked])
            return path.with_suffix(".new").rename(path)
        usual_us = dict.fromkeys(Direction, 10.0) | {Direction.BACKWARD: 20.0, Direction.ONCE: 5.0}
        entries, models = [], {}
        for operator in OPERATORS.values():
            for direction in operator.costs:
                key = operator.name, direction
                if {operator.name, key} & set(without) or (direction in operator.sums and key not in times):
                    continue
                usual = optional_us if operator.is_optional or operator.is_on_request else usual_us[direction]
                answer = times.get(key, times.get(operator.name, usual))
                zeros = [0.0] * len(operator.features)
                model = answer if isinstance(answer, bytes) else linear_model(zeros, answer)
                entry = regressor(key, model, largest=largest)
                entries.append(entry)
                models[entry.file] = model
        write_bundle(path, manifest(entries, fabric=fabric, compute=compute, dtype=dtype), models)
        _written[asked] = path.read_bytes()
        return path

    return make


@pytest.fixture(name="linear_model")
def linear_model_fixture() -> Callable[..., bytes]:
    """The function that makes a linear ONNX model of weights and a constant."""
    return linear_model


@pytest.fixture(name="regressor")
def regressor_fixture() -> Callable[..., RegressorEntry]:
    """The function that makes a regressor's entry for a model."""
    return regressor


@pytest.fixture(name="manifest")
def manifest_fixture() -> Callable[..., Manifest]:
    """The function that makes a manifest of entries."""
    return manifest


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output whose lines are not broken: paths of tests are long."""
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure with 1 MiB evicted before an iteration, and warm up with small products, in tests that are not about
    times.
    """
    from kernelcast.collector.measuring import cache_state, disturbance

    monkeypatch.setattr(cache_state, "_MOST_CPU_BYTES", 1 << 20)
    monkeypatch.setattr(disturbance, "_LARGER", 1)


@pytest.fixture
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> "Sequence[Candidate]":
    """Let selections choose among two quick candidates, for tests that are not about the choice."""
    from kernelcast.train import selection

    known = selection.all_candidates()
    candidates = [
        c for c in known.every if c.algorithm == "xgboost" and c.form != "raw" and c.inputs == "product"
    ][::2]
    few = known._replace(every=candidates, collective=known.collective[:1])
    monkeypatch.setattr(selection, "all_candidates", lambda: few)
    return candidates
