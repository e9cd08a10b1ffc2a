"""Laws of a run: the closed form and the simulation agree, and both move the right way."""

import contextlib
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kernelcast.plan.run import CAUSES, Run, daly_interval_s, expected, with_best_interval
from kernelcast.plan.simulation import simulate
from kernelcast.runtime.errors import UsageError

times = st.floats(0, 600)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Runs that make progress: some failures per interval and restart, on average."""
    step_s = draw(st.floats(0.1, 60))
    interval = draw(st.integers(1, 200))
    write_s = draw(st.floats(0, 1)) * interval * step_s
    start_s = draw(times)
    run = Run(
        steps=draw(st.integers(1, 5_000)),
        step_s=step_s,
        interval_steps=interval,
        stall_s=draw(times),
        write_s=write_s,
        start_s=start_s,
        evaluation_share=draw(st.floats(0, 0.2)),
        detection_s=draw(times),
        restart_s=start_s + draw(times),  # includes a node's replacement and loading
        short_probability=draw(st.sampled_from([0.0, 0.1])),
        short_s=draw(times),
    )
    busy_s = run.interval_s + run.restart_s + run.start_s + write_s
    return replace(run, failures_per_s=draw(st.floats(0.001, 0.4)) / busy_s)


@given(runs())
def test_parts_add_up(run: Run) -> None:
    found = expected(run)
    assert set(found.lost_s) == set(CAUSES)
    assert all(lost_s >= 0 for lost_s in found.lost_s.values())
    assert found.total_s == pytest.approx(found.work_s + sum(found.lost_s.values()))
    # Time without failures is a lower bound, and failures are a Poisson process over the time that processes run.
    whole = math.ceil(run.steps / run.interval_steps)
    least_s = run.start_s + run.work_s * (1 + run.evaluation_share) + whole * run.stall_s + run.write_s
    assert found.total_s >= least_s * (1 - 1e-9)
    up_s = found.total_s - found.failures * run.wait_s
    assert found.failures == pytest.approx(run.failures_per_s * up_s)


@given(runs())
def test_without_failures_only_what_is_planned_takes_time(run: Run) -> None:
    found = expected(replace(run, failures_per_s=0.0))
    simulated = simulate(replace(run, failures_per_s=0.0), runs=3)
    assert found.failures == 0
    assert found.lost_s["recomputation"] == pytest.approx(0, abs=1e-6 * found.total_s)
    assert np.allclose(simulated.total_s, found.total_s)
    bare = replace(run, failures_per_s=0.0, stall_s=0.0, write_s=0.0, start_s=0.0, evaluation_share=0.0)
    assert expected(bare).goodput == pytest.approx(1)


@given(runs(), st.floats(1.05, 2))
def test_goodput_falls_with_rate_restart_detection_and_stall(run: Run, more: float) -> None:
    goodput = expected(run).goodput
    for name in ("failures_per_s", "restart_s", "detection_s", "stall_s"):
        worse = replace(run, **{name: getattr(run, name) * more})
        assert expected(worse).goodput <= goodput * (1 + 1e-12), name


@given(runs())
def test_the_best_interval_is_the_best(run: Run) -> None:
    assume(run.steps > 10)
    long = replace(run, steps=100_000)
    best = with_best_interval(long)
    found = expected(best).total_s
    # Of the last, shorter interval the cost depends on the remainder; the rest is per step.
    slack_s = best.interval_s + best.restart_s
    for steps in {
        best.interval_steps + 1,
        best.interval_steps - 1,
        2 * best.interval_steps,
        best.interval_steps // 2,
    }:
        per_step_s = best.step_s * (1 + best.evaluation_share)
        if steps >= 1 and steps * per_step_s >= best.write_s and steps <= long.steps:
            other = replace(best, interval_steps=steps)
            with contextlib.suppress(UsageError):
                assert found <= expected(other).total_s + slack_s


def test_daly_is_close_to_the_best_interval() -> None:
    for mean_s, stall_s in ((3600.0, 10.0), (86_400.0, 60.0), (7_200.0, 300.0)):
        run = Run(
            steps=10**7,
            step_s=0.5,
            interval_steps=1,
            stall_s=stall_s,
            failures_per_s=1 / mean_s,
            restart_s=100,
        )
        best = with_best_interval(run)
        assert best.interval_steps * 0.5 == pytest.approx(
            daly_interval_s(stall_s=stall_s, mean_s=mean_s), rel=0.02
        )


@pytest.mark.parametrize("seed", range(4))
def test_the_simulated_mean_is_the_closed_form(seed: int) -> None:
    random = np.random.default_rng(seed)
    run = Run(
        steps=int(random.integers(500, 3_000)),
        step_s=float(random.uniform(1, 10)),
        interval_steps=int(random.integers(5, 50)),
        stall_s=float(random.uniform(0, 20)),
        start_s=float(random.uniform(0, 300)),
        evaluation_share=float(random.uniform(0, 0.1)),
        detection_s=float(random.uniform(0, 300)),
        restart_s=float(random.uniform(0, 300)),
        short_probability=0.2,
        short_s=200.0,
        failures_per_s=float(random.uniform(1e-4, 2e-3)),
    )
    run = replace(run, write_s=float(random.uniform(0, 1)) * run.interval_steps * run.step_s)
    found, simulated = expected(run), simulate(run, runs=20_000, seed=seed)
    for mean, values in ((found.total_s, simulated.total_s), (found.failures, simulated.failures)):
        error = float(values.std()) / math.sqrt(len(values))
        assert abs(float(values.mean()) - mean) < 4.5 * error


LOSSY = Run(
    steps=1_030, step_s=10.0, interval_steps=100, stall_s=20.0, write_s=400.0, start_s=300.0, evaluation_share=0.1,
    failures_per_s=2e-4, detection_s=60.0, restart_s=500.0, short_probability=0.25, short_s=800.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "failures", "lost_s"),
    [  # means of 100,000 simulated runs are within 3 standard errors of these
        (1_030, 3.2490805, (844.761, 1837.132, 2458.271, 620, 1030)),
        (200, 0.7575798, (196.971, 651.644, 496.255, 440, 200)),
        (100, 0.4569932, (118.818, 508.621, 256.345, 420, 100)),
        (60, 0.3308195, (86.013, 448.586, 125.512, 420, 60)),
    ],
)
def test_what_runs_of_many_one_and_no_whole_interval_lose(
    steps: int, failures: float, lost_s: tuple[float, ...]
) -> None:
    found = expected(replace(LOSSY, steps=steps))
    assert found.failures == pytest.approx(failures)
    assert list(found.lost_s.values()) == pytest.approx([*lost_s, 0, 0], abs=1e-3)


@pytest.mark.parametrize(("shape", "total_s"), [(0.5, 24127.6203), (1.0, 23625.0565), (2.0, 23411.9466)])
def test_simulated_jobs_and_maintenances(shape: float, total_s: float) -> None:
    run = replace(
        LOSSY, walltime_limit_s=7200.0, queue_s=1000.0, maintenance_every_s=9000.0, maintenance_s=600.0
    )
    lost_s = (844.761, 3396.110, 2458.271, 1288.251, 1030, 1297.987, 2591.075)
    assert list(expected(run).lost_s.values()) == pytest.approx(lost_s, abs=1e-3)
    simulated = simulate(replace(run, shape=shape), runs=2000, seed=1)
    assert simulated.total_s.mean() == pytest.approx(total_s)


def test_ten_thousand_runs_of_100_days_on_16384_gpus_take_two_seconds() -> None:
    from time import process_time

    run = with_best_interval(
        Run(
            steps=864_000, step_s=10.0, interval_steps=1, stall_s=5.0, write_s=60.0, start_s=600.0,
            restart_s=400.0, detection_s=100.0, failures_per_s=2048 * 3.8 / 1000 / 86_400,
        )
    )  # fmt: skip
    begin = process_time()
    found = simulate(run, runs=10_000)
    assert process_time() - begin <= 2
    assert found.total_s.mean() == pytest.approx(expected(run).total_s, rel=1e-3)


def test_equal_seeds_give_equal_runs() -> None:
    run = Run(steps=1_000, step_s=10.0, interval_steps=10, failures_per_s=1e-3, restart_s=60.0)
    assert np.array_equal(simulate(run, runs=50, seed=3).total_s, simulate(run, runs=50, seed=3).total_s)
    assert not np.array_equal(simulate(run, runs=50, seed=3).total_s, simulate(run, runs=50, seed=4).total_s)


def test_weibull_gaps_keep_their_mean_and_change_the_time() -> None:
    run = Run(steps=20_000, step_s=10.0, interval_steps=30, failures_per_s=1e-3, restart_s=60.0)
    clustered = simulate(replace(run, shape=0.5), runs=2_000)
    assert clustered.total_s.mean() < 0.99 * simulate(run, runs=2_000).total_s.mean()


def test_jobs_of_limited_walltime_and_maintenance_cost_what_they_say() -> None:
    run = Run(steps=100_000, step_s=10.0, interval_steps=100, stall_s=5.0, start_s=300.0)
    base = expected(run).total_s
    day = 86_400.0
    jobs = expected(replace(run, walltime_limit_s=day, queue_s=3_600.0))
    count = (base - 300) / (day - 305)
    assert jobs.lost_s["queue"] == pytest.approx(count * 3_600)
    assert jobs.total_s == pytest.approx(base + count * 3_600 + (count - 1) * 305)
    kept = expected(replace(run, maintenance_every_s=7 * day, maintenance_s=8 * 3_600.0, restart_s=300.0))
    stops = base / (7 * day - 8 * 3_600 - 300)
    assert kept.lost_s["maintenance"] == pytest.approx(stops * 8 * 3_600)
    for one in (replace(run, walltime_limit_s=day, queue_s=3_600.0),):
        simulated = simulate(one, runs=4_000)
        assert simulated.total_s.mean() == pytest.approx(expected(one).total_s, rel=0.03)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"failures_per_s": 1 / 300, "restart_s": 400.0},
            "failures are 5.000 min apart, a restart takes 6.667 min and an interval between checkpoints 16.67 min",
        ),
        (
            {"write_s": 2_000.0},
            "takes 33.33 min to write and the next is due after 16.67 min, expected storage that is faster",
        ),
        (
            {"walltime_limit_s": 300.0, "start_s": 400.0},
            "limit is 5.000 min, expected more than start-up and one checkpoint, 6.667 min",
        ),
        (
            {"maintenance_every_s": 3_600.0, "maintenance_s": 7_200.0},
            "every is 60.00 min, expected more than the maintenance and a restart, 2.000 h",
        ),
    ],
)
def test_runs_that_get_nowhere_are_refused(changed: dict[str, float], message: str) -> None:
    run = Run(steps=1_000, step_s=10.0, interval_steps=100)
    with pytest.raises(UsageError, match=message):
        expected(replace(run, **changed))  # type: ignore[arg-type]
