"""From steps to walltimes: worked examples, and laws that hold for every job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import UsageError
from kernelcast.walltime import Overheads
from kernelcast.walltime.arithmetic import StepTime, device_hours, walltime

STEP = StepTime(expected_s=2.0, low_s=1.5, high_s=3.0)


def test_steps_only() -> None:
    found = walltime(steps=100, step=STEP, overheads=Overheads(), margin=0.1)
    assert (found.low_s, found.expected_s, found.high_s) == (150.0, 200.0, 300.0)
    assert found.needed_s == pytest.approx(330.0)
    assert found.walltime_s == found.needed_s
    assert found.jobs == 1


def test_everything() -> None:
    overheads = Overheads(startup_s=60, checkpoint_every=30, checkpoint_s=5, restarts=2, restart_s=90)
    found = walltime(steps=100, step=STEP, overheads=overheads, margin=0.0)
    # 60 + 100 steps + 3 checkpoints of 5 + 2 · (90 + lost steps); 0, 15 and 30 steps are lost.
    assert found.low_s == 60 + 150 + 15 + 2 * 90
    assert found.expected_s == 60 + 200 + 15 + 2 * (90 + 15 * 2)
    assert found.high_s == 60 + 300 + 15 + 2 * (90 + 30 * 3)


def test_without_checkpoints_none_is_written() -> None:
    assert walltime(steps=100, step=STEP, overheads=Overheads(startup_s=60), margin=0.0).expected_s == 260
    with_cost = Overheads(checkpoint_every=101, checkpoint_s=5)
    assert walltime(steps=100, step=STEP, overheads=with_cost, margin=0.0).expected_s == 200


def test_no_more_steps_are_lost_than_there_are() -> None:
    overheads = Overheads(checkpoint_every=1_000, restarts=1)
    assert walltime(steps=10, step=STEP, overheads=overheads, margin=0).high_s == 60


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"restarts": 1}, "restarts is 1, expected checkpoint_every too"),
        ({"checkpoint_s": 5.0}, "checkpoint_cost is 5.0, expected checkpoint_every too"),
    ],
)
def test_what_needs_checkpoints(fields: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}$"):
        Overheads(**fields)  # type: ignore[arg-type]


def test_a_job_within_the_longest_time() -> None:
    found = walltime(steps=100, step=STEP, overheads=Overheads(), margin=0, max_time_s=300)
    assert (found.jobs, found.walltime_s) == (1, 300)


def test_a_chain_of_jobs() -> None:
    overheads = Overheads(startup_s=10, checkpoint_every=10, restart_s=20)
    found = walltime(steps=100, step=STEP, overheads=overheads, margin=0, max_time_s=150)
    # 310 s; every job after the first does again up to 10 steps of 3 s, and starts in 20 s: 310 + 2 · 50 ≤ 3 · 150.
    assert (found.needed_s, found.jobs, found.walltime_s, found.requested_s) == (310, 3, 150, 450)


@pytest.mark.parametrize(
    ("overheads", "max_time_s", "message"),
    [
        (
            Overheads(),
            299,
            "00:04:59, expected at least the 00:05:00 that the job needs, or checkpoint_every",
        ),
        (Overheads(checkpoint_every=50), 150, "or more than the 00:02:30 between two checkpoints"),
        (Overheads(checkpoint_every=50), 150.00001, "jobs would have to follow each other"),
    ],
)
def test_jobs_that_fit_nowhere(overheads: Overheads, max_time_s: float, message: str) -> None:
    with pytest.raises(UsageError, match=f"^max_time is .*{message}"):
        walltime(steps=100, step=STEP, overheads=overheads, margin=0, max_time_s=max_time_s)


times = st.floats(1e-6, 1e3)


@given(
    steps=st.integers(1, 10**9),
    ends=st.tuples(times, times, times).map(sorted),
    startup_s=st.floats(0, 1e5),
    every=st.integers(1, 10**6),
    checkpoint_s=st.floats(0, 1e4),
    restarts=st.integers(0, 100),
    restart_s=st.floats(0, 1e5),
    margin=st.floats(0, 10),
)
def test_laws(
    steps: int,
    ends: list[float],
    startup_s: float,
    every: int,
    checkpoint_s: float,
    restarts: int,
    restart_s: float,
    margin: float,
) -> None:
    step = StepTime(low_s=ends[0], expected_s=ends[1], high_s=ends[2])
    overheads = Overheads(
        startup_s=startup_s,
        checkpoint_every=every,
        checkpoint_s=checkpoint_s,
        restarts=restarts,
        restart_s=restart_s,
    )
    found = walltime(steps=steps, step=step, overheads=overheads, margin=margin)
    assert (
        steps * step.low_s <= found.low_s <= found.expected_s <= found.high_s <= found.needed_s * (1 + 1e-12)
    )
    # More work never takes less.
    assert walltime(
        steps=steps + 1, step=step, overheads=overheads, margin=margin
    ).needed_s > found.needed_s * (1 - 1e-12)
    # A chain holds the job, and one job fewer does not.
    again_s = (1 + margin) * (restart_s + every * step.high_s)
    max_time_s = again_s + max(1.0, found.needed_s / 50)
    chain = walltime(steps=steps, step=step, overheads=overheads, margin=margin, max_time_s=max_time_s)
    room_s = chain.jobs * max_time_s - (chain.jobs - 1) * again_s
    assert room_s >= found.needed_s * (1 - 1e-9)
    if chain.jobs > 1:
        assert room_s - (max_time_s - again_s) < found.needed_s * (1 + 1e-9)


def test_device_hours() -> None:
    assert device_hours(1_800, 8) == 4
