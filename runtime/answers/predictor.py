"""Operator times from a bundle's regressors: sessions made on first use, answers cached."""

import threading
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernelcast.runtime.answers.onnx_runtime import IS_FUSED, open_session, run_graph
from kernelcast.runtime.bundle.calibration import Factors
from kernelcast.runtime.bundle.file import Bundle, Key
from kernelcast.runtime.bundle.graph import Graph, check_graph
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.hardware.devices import ELEMENT_BYTES
from kernelcast.runtime.operators import Direction

INPUT_NAME = "workload"
OUTPUT_NAMES = ("time_us", "low_us", "high_us")
ANSWER_BYTES = 512
"""Size of one cached answer with its workload, an upper bound."""
MAX_REMEMBERED = 1 << 18
"""Most cached answers; a long search would otherwise grow without bound."""
LONGEST_US = 100 * 365.25 * 86_400e6
"""A century: no operator takes longer."""
_SHORTEST_US = 1e-10  # light crosses 30 nm
_MOST_LEVELS = 256
_USUAL_ELEMENT_BYTES = 2
_RUNS_BY_NUMPY, _ROWS_BY_NUMPY = 16, 1024
"""Runs of a graph by numpy, and rows of one, before a session is opened: five times as fast, and takes 3 to 30 ms."""
_BLOCK_ROWS = 4  # ONNX Runtime (MLAS) treats rows beyond a multiple of 4 apart
# Asked at once: what a graph may compute for each row is limited, so this limits its memory (MAX_COLUMNS: 256 MiB).
_MOST_ROWS = 1 << 14

Vector = tuple[float, ...]
Answer = tuple[float, float, float]
"""Time, low and high end of its 90 % interval, in µs."""


class Predictor:
    """Answers how long operators take; safe to use from several threads, holds no open files. A model's input is
    `workload`, float32 [N, features], its outputs `time_us`, `low_us`, `high_us`, float32 [N, 1]. Answers are cached
    and uncorrected: `factors_for` a timeline come from `stack`, else from the bundle's calibration
    unless `calibrated` is False.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        remembered: int = MAX_REMEMBERED,
        calibrated: bool = True,
        stack: Factors | None = None,
    ) -> None:
        self.bundle = bundle
        self.calibrated = calibrated
        self.stack = stack
        self._most_remembered = remembered
        self._lock = threading.Lock()
        # By the regressor's file, as what is remembered: checked graphs with the number of their runs, and sessions.
        self._graphs: dict[str, list[Any]] = {}
        self._sessions: dict[str, Any] = {}
        self._remembered: Mapping[str, dict[Vector, Answer]] = MappingProxyType(
            {entry.file: {} for entry in bundle.manifest.regressors}
        )
        self._levels = {1: self}
        # Times of collectives by fabric (collective_times.py); they live as long as the predictor.
        self.collective_sources: dict[Any, Any] = {}

    def at(self, processes: int) -> "Predictor":
        """A predictor for `processes` that compute at once on a node; shares this one's loaded models."""
        found = self._levels.get(processes)
        if found is None:
            found = self._at(processes)
            if len(self._levels) < _MOST_LEVELS:
                with self._lock:
                    self._levels[processes] = found
        return found

    def _at(self, processes: int) -> "Predictor":
        bundle = self.bundle.at(processes)
        # Several numbers of processes may be answered by the same regressors.
        for known in list(self._levels.values()):
            if known.bundle.entries == bundle.entries:
                return known
        other = copy(self)
        other.bundle = bundle
        return other

    def answers(self, operator: str, direction: Direction, vectors: ArrayLike) -> NDArray[np.float64]:
        """Times in µs with their 90 % interval, float64 [n, 3] (time, low, high), for vectors [n, features], in one run
        of the model. UsageError where `vectors` has another shape or is not finite; DataError where no regressor
        answers, or one answers times that make no sense.
        """
        entry = self._entry(operator, direction)
        array = np.asarray(vectors, dtype=np.float64)
        if array.ndim != 2 or array.shape[1] != len(entry.features) or not np.isfinite(array).all():
            expected = ", ".join(entry.features)
            raise UsageError(
                f"{operator} ({direction}): vectors of shape {array.shape}, expected finite [n, {expected}]"
            )
        rows: list[Vector] = list(map(tuple, array.tolist()))
        answers = self.answers_of(operator, direction, rows)
        return np.array([answers[row] for row in rows], dtype=np.float64).reshape(-1, len(OUTPUT_NAMES))

    def predict_us(self, operator: str, direction: Direction, vectors: ArrayLike) -> NDArray[np.float64]:
        """Times in µs alone, float64 [n]; otherwise like `answers`."""
        return self.answers(operator, direction, vectors)[:, 0]

    def answers_of(
        self, operator: str, direction: Direction, vectors: Sequence[Vector]
    ) -> dict[Vector, Answer]:
        """Answer of every distinct vector, each of the right length; errors as in `answers`."""
        entry = self._entry(operator, direction)
        remembered = self._remembered[entry.file]
        # Looked up once: another thread may empty what is remembered at any moment.
        found = {vector: remembered.get(vector) for vector in vectors}
        unknown = [vector for vector, answer in found.items() if answer is None]
        if unknown:
            new = dict(zip(unknown, self._run(entry.key, unknown), strict=True))
            with self._lock:
                if sum(map(len, self._remembered.values())) + len(new) > self._most_remembered:
                    for one in self._remembered.values():
                        one.clear()
                remembered.update(new)
            return {vector: new[vector] if known is None else known for vector, known in found.items()}
        return {vector: known for vector, known in found.items() if known is not None}

    def with_stack(self, stack: Factors | None) -> "Predictor":
        """The same regressors for another stack; shares this one's loaded models."""
        other = copy(self.at(1))
        other.collective_sources = {}
        other.stack = stack
        other._levels = {1: other}
        return other

    def factors_for(self, timeline: str) -> Factors | None:
        """The stack's factors; without a stack the bundle's calibration, fitted for `timeline` and not switched off.
        UsageError of a stack for another timeline than the simulation.
        """
        if self.stack is not None:
            if timeline != "simulate":
                raise UsageError(
                    field="timeline", found=timeline, expected="simulate with a stack, which is fitted to it"
                )
            return self.stack
        found = self.bundle.manifest.calibration
        return found if self.calibrated and found is not None and found.timeline == timeline else None

    def load(self) -> None:
        """Load every model now, not on first use; DataError where one cannot be loaded, or breaks the contract."""
        for level in self.bundle.levels or (1,):
            other = self.at(level)
            for key in other.bundle.entries:
                other._session(key)

    def _entry(self, operator: str, direction: Direction) -> RegressorEntry:
        try:
            return self.bundle.entries[operator, direction]
        except KeyError:
            raise DataError(
                f"bundle {self.bundle.path} has no regressor for {operator} ({direction})"
            ) from None

    def _run(self, key: Key, vectors: Sequence[Vector]) -> list[Answer]:
        operator, direction = key
        run = self._runner(key, len(vectors))
        asked = np.array(vectors, dtype=np.float32)
        # Rows left over from full blocks are added up in another order, and differ in the last bits:
        # padded, an answer does not depend on the rest of its batch.
        padded = asked[np.minimum(np.arange(len(asked) + -len(asked) % _BLOCK_ROWS), len(asked) - 1)]
        blocks = [
            self._run_block(key, run, padded[n : n + _MOST_ROWS]) for n in range(0, len(padded), _MOST_ROWS)
        ]
        answers = np.concatenate(blocks)[: len(vectors)].astype(np.float64)
        time_us, low_us, high_us = answers.T
        holds = (low_us > 0) & (low_us <= time_us) & (time_us <= high_us) & (high_us < np.inf)
        holds &= (time_us >= _SHORTEST_US) & (time_us <= LONGEST_US)
        if not holds.all():
            wrong = int(np.argmin(holds))
            raise DataError(
                f"bundle {self.bundle.path}: {operator} ({direction}) answers {time_us[wrong]:g} "
                f"({low_us[wrong]:g} to {high_us[wrong]:g}) µs for workload {list(vectors[wrong])}, "
                "expected a positive time within its interval, at most 100 years"
            )
        transfer = self.bundle.entries[key].transfer
        if transfer is not None:
            element_bytes = ELEMENT_BYTES.get(self.bundle.entries[key].dtype, _USUAL_ELEMENT_BYTES)
            carried_us = transfer.carried_us(key, vectors, answers[:, 0], element_bytes)
            widths = transfer.log_half_widths(key, vectors, element_bytes)
            answers = carried_over(answers, carried_us / answers[:, 0], widths)
        return list(map(tuple, answers.tolist()))

    def _runner(self, key: Key, rows: int) -> Callable[[NDArray[np.float32]], Sequence[NDArray[np.float32]]]:
        """What evaluates the model on a number of rows: numpy at first, a session for many rows or calls."""
        file = self.bundle.entries[key].file
        with self._lock:
            if file not in self._sessions:
                if file not in self._graphs:
                    self._graphs[file] = [self._checked(key), 0]
                graph, self._graphs[file][1] = self._graphs[file][0], self._graphs[file][1] + 1
                if IS_FUSED and self._graphs[file][1] <= _RUNS_BY_NUMPY and rows <= _ROWS_BY_NUMPY:
                    return partial(_by_numpy, graph)
        session = self._session(key)
        return lambda rows: session.run(OUTPUT_NAMES, {INPUT_NAME: rows})

    def _run_block(
        self, key: Key, run: Callable[..., Sequence[NDArray[np.float32]]], rows: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """What the model answers, float32 [rows, 3], unverified but for its shape."""
        try:
            outputs = run(rows)
        except Exception as error:
            raise self._broken(key, f"cannot be run ({_first_line(error)})") from error
        for output in outputs:
            if output.shape != (len(rows), 1) or output.dtype != np.float32:
                shape = (len(rows), 1)
                raise self._broken(key, f"answers {output.dtype} {output.shape}, expected float32 {shape}")
        return np.concatenate(outputs, axis=1)

    def _session(self, key: Key) -> Any:
        file = self.bundle.entries[key].file
        with self._lock:
            if file not in self._sessions:
                self._sessions[file] = self._open(key)
            return self._sessions[file]

    def _checked(self, key: Key) -> Graph:
        try:
            graph = check_graph(self.bundle.model(key), len(self.bundle.entries[key].features))
        except DataError as error:
            raise self._broken(key, f"is refused: {error}") from error
        names = [one.decode("utf-8", "replace") for one in graph.outputs]
        found = graph.input.decode("utf-8", "replace")
        if found != INPUT_NAME or not set(OUTPUT_NAMES) <= set(names):
            expected = list(OUTPUT_NAMES)
            raise self._broken(key, f"maps {[found]} to {names}, expected [{INPUT_NAME!r}] to {expected}")
        return graph

    def _open(self, key: Key) -> Any:
        if self.bundle.entries[key].file not in self._graphs:
            self._checked(key)
        try:
            return open_session(self.bundle.model(key))
        except Exception as error:
            raise self._broken(
                key, f"is not a model that ONNX Runtime loads ({_first_line(error)})"
            ) from error

    def _broken(self, key: Key, problem: str) -> DataError:
        operator, direction = key
        return DataError(f"bundle {self.bundle.path}: the model of {operator} ({direction}) {problem}")


def carried_over(
    answers: NDArray[np.float64],
    factors: NDArray[np.float64],
    log_half_widths: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Answers [n, 3] for another device: times by `factors` [n], half-widths of log(time) added as squares."""
    time_us, low_us, high_us = answers.T
    below, above = log_half_widths
    low = np.exp(np.hypot(np.log(time_us / low_us), below))
    high = np.exp(np.hypot(np.log(high_us / time_us), above))
    carried_us = time_us * factors
    return np.stack([carried_us, carried_us / low, carried_us * high], axis=1)


def _by_numpy(graph: Graph, rows: NDArray[np.float32]) -> Sequence[NDArray[np.float32]]:
    values = run_graph(graph, rows)
    return [values[name.encode()] for name in OUTPUT_NAMES]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
