"""The chooser against an oracle that answers at once: what it asks for, and when it ends."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernelcast.collector.benches import Point
from kernelcast.collector.plans.plan_file import load_plan
from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.sampling import design
from kernelcast.sampling.chooser import FEWEST_FOR_AN_ERROR, Chooser
from kernelcast.sampling.cost import Cost, Times
from kernelcast.sampling.design import FIRST_ROWS, batch_size
from kernelcast.store import Repetition, Sample, Status

COST = Cost(source="test", overhead_s=1.0, flops_per_s=1e12, bytes_per_s=1e12, element_bytes=4, fitted={})
OPS = ("gelu", "layer_norm")


class Machine:
    """A clock, and operators that take 5 µs and 1 ns per element; noisy where wanted."""

    def __init__(self, noise: float = 0.0) -> None:
        self.now, self.asked = 0.0, list[Point]()
        self._noise, self._rng = noise, np.random.default_rng(0)

    def clock(self) -> float:
        return self.now

    def measure(self, point: Point) -> list[Sample]:
        self.now += 1.0
        self.asked.append(point)
        time_us = (5 + 1e-3 * float(np.prod(point.vector))) * float(np.exp(self._rng.normal(0, self._noise)))
        return [
            Sample.from_repetitions(
                run_id="r",
                operator=point.operator,
                direction=direction,
                dtype="float32",
                vector=point.vector,
                repetitions=[Repetition(index=0, time_us=time_us, start_us=0.0, kernels=())],
            )
            for direction in point.law.directions
        ]


@pytest.fixture(autouse=True)
def small_committee(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stumps alone: these tests are about which points are chosen, not about the best of all forms."""
    monkeypatch.setattr(design, "_COMPUTE", design._COMPUTE[2:4])


@pytest.fixture
def plan() -> Plan:
    return load_plan("quick")


def chooser(
    plan: Plan,
    machine: Machine,
    times: Times | None = None,
    *,
    names: tuple[str, ...] = OPS,
    cost: Cost = COST,
    **changes: float,
) -> Chooser:
    options = {"budget_s": 60.5, "target": 0.0, "memory_bytes": 2**40} | changes
    return Chooser(plan, names, cost=cost, times=times or {}, clock=machine.clock, **options)  # type: ignore[arg-type]


def run(chosen: Chooser, machine: Machine, most: int = 10_000) -> None:
    for _ in range(most):
        point = chosen.next()
        if point is None:
            return
        chosen.tell(point, machine.measure(point))


def test_space_is_filled_first_and_the_budget_ends_it(plan: Plan) -> None:
    machine = Machine(noise=0.1)
    chosen = chooser(plan, machine)
    run(chosen, machine)
    assert machine.now == 60  # another one of a second would not have fitted
    first = Counter(point.operator for point in machine.asked[: 2 * FIRST_ROWS])
    assert first == dict.fromkeys(OPS, FIRST_ROWS)
    assert len({(p.operator, p.vector) for p in machine.asked}) == 60
    assert chosen.mean_error is not None
    assert 0.02 < chosen.mean_error < 0.3
    assert sum(state.known for state in chosen.states.values()) == 60


def test_a_budget_too_small_for_all_finishes_one_operator(plan: Plan) -> None:
    machine = Machine(noise=0.1)
    chosen = chooser(plan, machine, budget_s=FIRST_ROWS + 0.5)
    assert chosen.needed_s == pytest.approx(2 * FEWEST_FOR_AN_ERROR, rel=0.1)
    run(chosen, machine)
    assert sorted(state.known for state in chosen.states.values()) == [0, FIRST_ROWS]
    assert sum(state.error is not None for state in chosen.states.values()) == 1
    times = {key: dict(found) for state in chosen.states.values() for key, found in state.times.items()}
    after = chooser(plan, machine, times)
    assert after.needed_s == pytest.approx(FEWEST_FOR_AN_ERROR, rel=0.1)


def test_what_is_too_dear_leaves_the_time_to_the_others(plan: Plan) -> None:
    machine = Machine(noise=0.1)
    dear = replace(COST, flops_per_s=1e3)  # hours for each product
    chosen = chooser(plan, machine, names=("gemm", "qkv_split"), cost=dear, budget_s=20.5)
    run(chosen, machine)
    assert Counter(point.operator for point in machine.asked) == {"qkv_split": 20}


def test_what_is_too_dear_leaves_the_time_to_the_cheaper_ones_of_its_operator(plan: Plan) -> None:
    machine = Machine(noise=0.1)
    slow = replace(COST, overhead_s=0.01, flops_per_s=1e9, bytes_per_s=1e9)
    chosen = chooser(plan, machine, names=("gemm",), cost=slow, budget_s=5.5)
    state = chosen.states["gemm"]
    seconds = {point.vector: float(taken) for point, taken in zip(state.points, state.seconds, strict=True)}
    assert min(seconds.values()) < 1 < 5.5 < np.median(list(seconds.values()))
    run(chosen, machine)
    asked = [seconds.pop(point.vector) for point in machine.asked]
    assert len(asked) > 1
    assert max(asked) <= 5.5
    assert min(seconds.values()) > 5.5 - machine.now  # none of the others fits


def test_a_target_ends_what_is_good_enough(plan: Plan) -> None:
    machine = Machine()
    chosen = chooser(plan, machine, budget_s=float("inf"), target=0.05)
    run(chosen, machine)
    assert len(machine.asked) < 2 * (FIRST_ROWS + 10 * batch_size(0))
    assert all(state.error is not None and state.error < 0.05 for state in chosen.states.values())


@pytest.mark.slow
def test_an_interrupted_one_goes_on_from_what_is_known(plan: Plan) -> None:
    machine = Machine(noise=0.1)
    before = chooser(plan, machine)
    run(before, machine, most=40)
    times = {key: dict(found) for state in before.states.values() for key, found in state.times.items()}
    asked = {(point.operator, point.vector) for point in machine.asked}
    machine.asked.clear()
    after = chooser(plan, machine, times)
    assert {n: s.known for n, s in after.states.items()} == {n: s.known for n, s in before.states.items()}
    run(after, machine, most=20)
    assert len(machine.asked) == 20
    assert not asked & {(point.operator, point.vector) for point in machine.asked}


def test_what_does_not_fit_is_no_candidate(plan: Plan) -> None:
    machine = Machine()
    chosen = chooser(plan, machine, memory_bytes=2**20, budget_s=20.5)
    run(chosen, machine)
    for point in machine.asked:
        assert 4 * sum(point.law.moved_bytes(d, point.vector, 1) for d in point.law.directions) <= 2**20
    assert machine.asked


def run_without_times(
    chosen: Chooser, machine: Machine, status: Status, lacks: Callable[[int, Point], bool]
) -> Counter[str]:
    """Points requested per operator; those that `lacks` picks, by number and point, get no time."""
    asked = Counter[str]()
    while (point := chosen.next()) is not None:
        samples = machine.measure(point)
        if lacks(asked[point.operator], point):
            samples = [
                Sample.without_time(
                    run_id="r", operator=point.operator, direction=direction, dtype="float32",
                    vector=point.vector, status=status, reason="no kernel",
                )
                for direction in point.law.directions
            ]  # fmt: skip
        asked[point.operator] += 1
        chosen.tell(point, samples)
    return asked


@pytest.mark.parametrize("status", [Status.FAILED, Status.UNSUPPORTED])
def test_an_operator_without_a_time_leaves_the_budget_to_the_others(plan: Plan, status: Status) -> None:
    machine = Machine(noise=0.1)
    chosen = chooser(plan, machine, names=(*OPS, "softmax"), budget_s=60.5)
    asked = run_without_times(chosen, machine, status, lambda number, point: point.operator == "softmax")
    assert asked["softmax"] == FIRST_ROWS
    assert asked.total() == 60
    assert min(asked[name] for name in OPS) > FIRST_ROWS
    assert chosen.mean_error == np.mean([chosen.states[name].error for name in OPS])


def test_an_operator_with_hardly_a_time_is_given_up(plan: Plan) -> None:
    machine = Machine(noise=0.1)
    chosen = chooser(plan, machine, budget_s=40.5)
    asked = run_without_times(
        chosen, machine, Status.FAILED, lambda number, point: point.operator == "gelu" and number != 3
    )
    assert asked == {"gelu": 2 * FIRST_ROWS, "layer_norm": 40 - 2 * FIRST_ROWS}


def test_a_shape_that_is_not_supported_leaves_the_others(plan: Plan) -> None:
    machine = Machine()
    chosen = chooser(plan, machine, names=("softmax",), budget_s=30.5)
    asked = run_without_times(
        chosen, machine, Status.UNSUPPORTED, lambda number, point: point.vector[-1] % 128 > 0
    )
    assert asked["softmax"] == 30
    assert chosen.states["softmax"].known >= FEWEST_FOR_AN_ERROR


def test_every_candidate_is_measured_where_there_is_time() -> None:
    plan = load_plan(str(Path(__file__).parent.parent / "data" / "plans" / "tiny.toml"))
    machine = Machine()
    chosen = chooser(plan, machine, budget_s=float("inf"))
    run(chosen, machine)
    assert Counter(point.operator for point in machine.asked)["layer_norm"] == 8
    assert all(state.is_exhausted for state in chosen.states.values())


def test_cost_follows_the_roofline() -> None:
    linear = OPERATORS["gemm"]
    small, large = COST.seconds(linear, [(64, 64, 64), (8192, 8192, 8192)])
    assert small == pytest.approx(1.0, abs=1e-3)
    # Three products of 2 m k n FLOPs at 1e12/s, forty calls of each.
    assert large == pytest.approx(1 + 40 * 6 * 8192**3 / 1e12)
    assert Direction.INPUT_GRADIENT in linear.directions
