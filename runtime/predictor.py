"""Operator times from a bundle's regressors: sessions made when first asked, answers remembered."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernelcast.runtime.bundle import Bundle, Key
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.operators import Direction

INPUT_NAME = "workload"
OUTPUT_NAME = "time_us"
# Answers remembered per regressor; a long search would otherwise grow without bound.
_MAX_REMEMBERED = 1 << 17

Vector = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeWarning:
    """A regressor was asked outside what it was trained on: `feature` had the value `asked`."""

    operator: str
    direction: Direction
    feature: str
    asked: float
    minimum: float
    maximum: float

    def __str__(self) -> str:
        return (
            f"{self.operator} ({self.direction}): {self.feature} = {self.asked:g} is outside the training "
            f"range, {self.minimum:g} to {self.maximum:g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `range` is [minimum, maximum]."""
        return {
            "operator": self.operator,
            "direction": self.direction.value,
            "feature": self.feature,
            "asked": self.asked,
            "range": [self.minimum, self.maximum],
            "message": str(self),
        }


class Predictor:
    """Answers how long operators take. Safe to use from several threads; holds no open files.

    Each model is a function of one input `workload`, float32 [N, features], with an output `time_us`,
    float32 [N, 1] in microseconds; further outputs are allowed and not asked for.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._lock = threading.Lock()
        self._sessions: dict[Key, Any] = {}
        self._remembered: Mapping[Key, dict[Vector, float]] = MappingProxyType(
            {key: {} for key in bundle.entries}
        )

    def predict_us(self, operator: str, direction: Direction, vectors: ArrayLike) -> NDArray[np.float64]:
        """Times in µs, float64 [n], for workload vectors [n, features]; the regressor is run at most once.

        Raises:
            UsageError: `vectors` has another shape, or values that are not finite.
            DataError: the bundle has no such regressor, its model cannot be run or breaks the contract, or
                it answers a time that is not positive and finite.
        """
        entry = self._entry(operator, direction)
        array = np.asarray(vectors, dtype=np.float64)
        if array.ndim != 2 or array.shape[1] != len(entry.features) or not np.isfinite(array).all():
            expected = ", ".join(entry.features)
            raise UsageError(
                f"{operator} ({direction}): vectors of shape {array.shape}, expected finite [n, {expected}]"
            )
        rows: list[Vector] = list(map(tuple, array.tolist()))
        times = self.times_us(operator, direction, rows)
        return np.array([times[row] for row in rows], dtype=np.float64)

    def times_us(self, operator: str, direction: Direction, vectors: Sequence[Vector]) -> dict[Vector, float]:
        """Time in µs of every distinct vector, each of the right length; errors as in `predict_us`."""
        entry = self._entry(operator, direction)
        remembered = self._remembered[entry.key]
        # Looked up once: another thread may empty what is remembered at any moment.
        times = {vector: remembered.get(vector) for vector in vectors}
        unknown = [vector for vector, time_us in times.items() if time_us is None]
        if unknown:
            answers = dict(zip(unknown, self._run(entry.key, unknown), strict=True))
            with self._lock:
                if len(remembered) + len(answers) > _MAX_REMEMBERED:
                    remembered.clear()
                remembered.update(answers)
            return {vector: answers[vector] if known is None else known for vector, known in times.items()}
        return {vector: known for vector, known in times.items() if known is not None}

    def range_warnings(
        self, operator: str, direction: Direction, vectors: Sequence[Vector]
    ) -> tuple[RangeWarning, ...]:
        """One warning per feature and value outside the training range, in order of appearance."""
        entry = self._entry(operator, direction)
        found: dict[tuple[str, float], RangeWarning] = {}
        for vector in vectors:
            for feature, asked, (low, high) in zip(entry.features, vector, entry.training_range, strict=True):
                if not low <= asked <= high:
                    found[feature, asked] = RangeWarning(
                        operator=operator,
                        direction=direction,
                        feature=feature,
                        asked=asked,
                        minimum=low,
                        maximum=high,
                    )
        return tuple(found.values())

    def _entry(self, operator: str, direction: Direction) -> Any:
        try:
            return self.bundle.entries[operator, direction]
        except KeyError:
            raise DataError(
                f"bundle {self.bundle.path} has no regressor for {operator} ({direction})"
            ) from None

    def _run(self, key: Key, vectors: Sequence[Vector]) -> list[float]:
        operator, direction = key
        session = self._session(key)
        try:
            (answer,) = session.run([OUTPUT_NAME], {INPUT_NAME: np.array(vectors, dtype=np.float32)})
        except Exception as error:
            raise self._broken(key, f"cannot be run ({_first_line(error)})") from error
        if answer.shape != (len(vectors), 1) or answer.dtype != np.float32:
            shape = (len(vectors), 1)
            raise self._broken(key, f"answers {answer.dtype} {answer.shape}, expected float32 {shape}")
        times_us = answer[:, 0].astype(np.float64)
        wrong = np.flatnonzero(~(np.isfinite(times_us) & (times_us > 0)))
        if wrong.size:
            raise DataError(
                f"bundle {self.bundle.path}: {operator} ({direction}) answers {times_us[wrong[0]]} µs "
                f"for workload {list(vectors[wrong[0]])}, expected a positive time"
            )
        times: list[float] = times_us.tolist()
        return times

    def _session(self, key: Key) -> Any:
        with self._lock:
            if key not in self._sessions:
                self._sessions[key] = self._open(key)
            return self._sessions[key]

    def _open(self, key: Key) -> Any:
        # Imported here: it takes a quarter of a second, which reading a bundle does not need.
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(
                self.bundle.models[key], options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise self._broken(
                key, f"is not a model that ONNX Runtime loads ({_first_line(error)})"
            ) from error
        inputs, outputs = session.get_inputs(), [node.name for node in session.get_outputs()]
        if [node.name for node in inputs] != [INPUT_NAME] or OUTPUT_NAME not in outputs:
            names = [node.name for node in inputs]
            raise self._broken(
                key, f"maps {names} to {outputs}, expected [{INPUT_NAME!r}] to [{OUTPUT_NAME!r}]"
            )
        return session

    def _broken(self, key: Key, problem: str) -> DataError:
        operator, direction = key
        return DataError(f"bundle {self.bundle.path}: the model of {operator} ({direction}) {problem}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
