"""Measures what helps most first: which operator, and which of its workloads, is worth the next seconds.

The state is what was measured: a chooser that is made from a database goes on where an interrupted one was.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernelcast.collector.benches import Point
from kernelcast.collector.plans.plan import Plan, distinct_points, planned_operators
from kernelcast.collector.plans.plan_memory import point_bytes
from kernelcast.runtime.operators import Direction, Operator
from kernelcast.sampling.committee import best_member
from kernelcast.sampling.cost import Cost, Times
from kernelcast.sampling.design import FIRST_ROWS, batch_size, next_workloads
from kernelcast.sampling.stored_times import tables_of
from kernelcast.store import Sample, Status
from kernelcast.train.dataset import Array

MOST_CANDIDATES = 1200
FEWEST_FOR_AN_ERROR = 8
"""Workloads of an operator below which its error is not estimated; `train` needs as many."""


@dataclass(slots=True, kw_only=True)
class OperatorState:
    """One operator's candidates and what is known of them. `error` is cross-validated, None before there are rows."""

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
        """Whether every candidate was tried."""
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

    Gives up an operator that fails or is not supported at nearly all shapes tried.

    Args:
        plan: candidates are the shapes of its ranges.
        cost: what measuring takes.
        times: what is known already.
        budget_s: seconds from now; below `needed_s` (until each operator has an error), operators are finished one by
            one.
        target: cross-validated mean relative error, a fraction, at which an operator is done.
        memory_bytes: candidates that need more are left out; `too_large` are the operators without any other.

    Raises:
        UsageError: an operator is unknown, or the plan has no shape for one.
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
        # Some operators known well are of more use than none.
        self._one_by_one = self.needed_s > budget_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since this chooser was made."""
        return self._clock() - self._started

    @property
    def mean_error(self) -> float | None:
        """Mean of the operators' errors; None before there is one for each that has candidates."""
        errors = [state.error for state in self.states.values() if state.error is not None]
        waiting = any(s.error is None and not s.is_exhausted for s in self.states.values())
        return None if waiting or not errors else float(np.mean(errors))

    def next(self) -> Point | None:
        """The next point to measure; None when there is no more to do or no more time."""
        open_states = [s for s in self.states.values() if not s.is_exhausted and not self._is_done(s)]
        while open_states:
            state = max(open_states, key=self._worth)
            left_s = self._deadline - self._clock()
            state.queue = [number for number in state.queue if state.seconds[number] <= left_s]
            if not state.queue:
                self._choose(state, left_s)
            if not state.queue:
                open_states.remove(state)  # one of another operator may still fit
                continue
            number = state.queue.pop(0)
            state.tried.add(number)
            return state.points[number]
        return None

    def tell(self, point: Point, samples: Sequence[Sample]) -> None:
        """Record the samples of a point."""
        state = self.states[point.operator]
        for sample in samples:
            time_us = sample.quiet_us if sample.quiet_us is not None else sample.time_us
            if sample.status is Status.OK and time_us is not None:
                found = state.times.setdefault((sample.operator, Direction(sample.direction)), {})
                found[sample.vector] = time_us
        if state.error is None and len(state.tried) >= FIRST_ROWS * (1 + state.known):
            state.tried |= set(
                range(len(state.points))
            )  # hardly a shape has a time: go on with other operators
            state.queue.clear()
        if not state.queue:
            self._learn(state)

    def _is_done(self, state: OperatorState) -> bool:
        return state.error is not None and state.error < self.target and not state.queue

    def _worth(self, state: OperatorState) -> float:
        """Expected gain per second: first the space is filled, evenly; then error × its share that a batch removes."""
        if state.error is None:  # in rotation, so that drift of the machine affects all operators equally
            tries = 1 + len(state.tried)
            return 1e9 * tries if self._one_by_one else 1e9 / tries
        return self._gain(state)

    def _gain(self, state: OperatorState) -> float:
        assert state.error is not None
        remaining = [n for n in range(len(state.points)) if n not in state.tried]
        seconds = float(np.mean(state.seconds[remaining])) if remaining else 1.0
        # Errors fall about as one over the root of the rows.
        return (state.error - self.target) / (2 * state.known * seconds)

    def _choose(self, state: OperatorState, left_s: float) -> None:
        """Fill the queue with what can be measured in the time left, if there is any."""
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
