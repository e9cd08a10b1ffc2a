"""Chooses the operator and the workload that are worth the next seconds of measuring.

Its only state is the measurements: a chooser made from a database continues where an interrupted one stopped.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernelcast.collector.benches import Point
from kernelcast.collector.measuring.measurer import point_bytes
from kernelcast.collector.plans.plan import distinct_points, planned_operators
from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.runtime.operators import Direction, Operator
from kernelcast.sampling.cost import Cost, Times, tables_of
from kernelcast.sampling.design import FIRST_ROWS, batch_size, best_member, next_workloads
from kernelcast.store import Sample, Status
from kernelcast.train.dataset import Array

MOST_CANDIDATES = 1200
FEWEST_FOR_AN_ERROR = 8
"""Workloads of an operator before its error is estimated; `train` needs the same number."""


@dataclass(slots=True, kw_only=True)
class OperatorState:
    """One operator's candidates and their known times. `error` is cross-validated; None before there are rows."""

    op: Operator
    points: list[Point]
    workloads: Array
    seconds: Array
    times: Times
    tried: set[int] = field(default_factory=set)
    queue: list[int] = field(default_factory=list)
    error: float | None = None

    @property
    def is_exhausted(self) -> bool:
        return not self.queue and len(self.tried) >= len(self.points)

    @property
    def known(self) -> int:
        """Workloads with a time, of the plan or not."""
        return min(len(self.times.get((self.op.name, d), {})) for d in self.op.directions)

    @property
    def needed_s(self) -> float:
        """Seconds until enough is known to estimate an error."""
        left = [n for n in range(len(self.points)) if n not in self.tried]
        missing = min(len(left), max(0, FEWEST_FOR_AN_ERROR - self.known))
        return missing * float(np.mean(self.seconds[left])) if missing else 0.0


class Chooser:
    """Hands out points until every operator's error is under `target`, all points are used, or the budget is spent.

    An operator that fails or is unsupported at nearly all shapes tried is given up.

    Args:
        plan: candidates are the shapes of its ranges.
        cost: seconds that measuring a point takes.
        times: times already known.
        budget_s: seconds from now; below `needed_s` (until each operator has an error), operators are finished one by
            one.
        target: cross-validated mean relative error, a fraction, at which an operator is done.
        memory_bytes: candidates that need more are left out; `too_large` are operators without a candidate left.

    UsageError where an operator is unknown, or the plan has no shape for one.
    """

    def __init__(
        self,
        plan: Plan,
        operators: tuple[str, ...],
        *,
        cost: Cost,
        times: Times,
        budget_s: float,
        target: float,
        memory_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._started = clock, clock()
        self._deadline, self.target, self._seed = self._started + budget_s, target, plan.seed
        self._rng = np.random.default_rng(plan.seed)
        planned = planned_operators(plan, operators)
        candidates = distinct_points(plan, planned)
        self.states = {op.name: _state(op, candidates[op.name], cost, times, memory_bytes) for op in planned}
        self.already_there = sum(len(state.tried) for state in self.states.values())
        self.too_large = tuple(name for name, state in self.states.items() if not state.points)
        for state in self.states.values():
            self._learn(state)
        self.needed_s = sum(state.needed_s for state in self.states.values())
        # A few operators with an error are more useful than none.
        self._one_by_one = self.needed_s > budget_s

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started

    @property
    def mean_error(self) -> float | None:
        """Mean of the operators' errors; None until every operator with candidates has one."""
        errors = [state.error for state in self.states.values() if state.error is not None]
        waiting = any(s.error is None and not s.is_exhausted for s in self.states.values())
        return None if waiting or not errors else float(np.mean(errors))

    def next(self) -> Point | None:
        """The next point to measure; None when nothing is left or time is up."""
        open_states = [s for s in self.states.values() if not s.is_exhausted and not self._is_done(s)]
        while open_states:
            state = max(open_states, key=self._worth)
            left_s = self._deadline - self._clock()
            state.queue = [number for number in state.queue if state.seconds[number] <= left_s]
            if not state.queue:
                self._choose(state, left_s)
            if not state.queue:
                open_states.remove(state)  # a point of another operator may still fit
                continue
            number = state.queue.pop(0)
            state.tried.add(number)
            return state.points[number]
        return None

    def tell(self, point: Point, samples: Sequence[Sample]) -> None:
        state = self.states[point.operator]
        for sample in samples:
            time_us = sample.quiet_us if sample.quiet_us is not None else sample.time_us
            if sample.status is Status.OK and time_us is not None:
                found = state.times.setdefault((sample.operator, Direction(sample.direction)), {})
                found[sample.vector] = time_us
        if state.error is None and len(state.tried) >= FIRST_ROWS * (1 + state.known):
            # Hardly any shape has a time: go on with other operators.
            state.tried |= set(range(len(state.points)))
            state.queue.clear()
        if not state.queue:
            self._learn(state)

    def _is_done(self, state: OperatorState) -> bool:
        return state.error is not None and state.error < self.target and not state.queue

    def _worth(self, state: OperatorState) -> float:
        """Expected gain per second: first fill the space evenly; then the error times the share a batch removes."""
        if state.error is None:  # in rotation: drift of the machine then affects all operators equally
            tries = 1 + len(state.tried)
            return 1e9 * tries if self._one_by_one else 1e9 / tries
        remaining = [n for n in range(len(state.points)) if n not in state.tried]
        seconds = float(np.mean(state.seconds[remaining])) if remaining else 1.0
        # Errors fall about as 1 / √rows.
        return (state.error - self.target) / (2 * state.known * seconds)

    def _choose(self, state: OperatorState, left_s: float) -> None:
        """Fill the queue with points that can be measured in the time left."""
        numbers = [n for n in range(len(state.points)) if n in state.tried or state.seconds[n] <= left_s]
        if len(numbers) == len(state.tried):
            return
        tables = tables_of(state.op, state.times, [point.vector for point in state.points])
        count = max(batch_size(len(state.tried)), FIRST_ROWS - len(state.tried))
        chosen = next_workloads(
            state.workloads[numbers],
            tables,
            [place for place, n in enumerate(numbers) if n in state.tried],
            count,
            self._rng,
            seconds=state.seconds[numbers],
        )
        state.queue = [numbers[place] for place in chosen]

    def _learn(self, state: OperatorState) -> None:
        directions = [state.times.get((state.op.name, d), {}) for d in state.op.directions]
        vectors = sorted(set(directions[0]).intersection(*directions[1:]))
        tables = tables_of(state.op, state.times, vectors)
        if tables and len(tables[0]) >= FEWEST_FOR_AN_ERROR:
            state.error = float(np.mean([best_member(table, self._seed)[1] for table in tables]))


def _state(
    op: Operator, candidates: Sequence[Point], cost: Cost, times: Times, memory_bytes: int
) -> OperatorState:
    fitting = [point for point in candidates if point_bytes(point, cost.element_bytes) <= memory_bytes]
    points = fitting[:MOST_CANDIDATES]  # they are in random order
    known = [set(times.get((op.name, direction), {})) for direction in op.directions]
    return OperatorState(
        op=op,
        points=points,
        workloads=np.array([point.vector for point in points], dtype=np.float64),
        seconds=np.array(cost.seconds(op, [point.vector for point in points])) if points else np.zeros(0),
        times={(op.name, d): dict(times.get((op.name, d), {})) for d in op.directions},
        tried={n for n, point in enumerate(points) if all(point.vector in found for found in known)},
    )
