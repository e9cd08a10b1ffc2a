"""What no pipeline can be is refused in one line that names it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernelcast.runtime import UsageError
from kernelcast.runtime.pipeline.durations import Durations, Overlap
from kernelcast.runtime.pipeline.pass_times import step_timeline
from kernelcast.runtime.pipeline.simulate import simulate


def uniform(pp: int, forward: float, backward: float, weight: float = 0.0) -> Durations:
    none = np.zeros((1, pp))
    return Durations(
        forward_us=none + forward,
        backward_us=none + backward,
        weight_us=none + weight,
        send_forward_us=none,
        send_backward_us=none,
        all_reduce_us=none,
        update_us=none,
    )


def overlapped(**changed: Any) -> Any:
    """Durations whose overlap is refused, made where the refusal is expected."""
    overlap = Overlap(
        first_us=np.zeros((1, 2)), last_us=np.zeros((1, 2)), buckets=np.ones((1, 2)), link_us=np.zeros((1, 2))
    )
    return lambda: replace(uniform(2, 1, 1), overlap=replace(overlap, **changed))


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"schedule": "chimera"},
            "schedule is 'chimera', expected one of gpipe, 1f1b, interleaved, zero_bubble, zb_v, dualpipe, dualpipe_v",
        ),
        (
            {"schedule": "zero_bubble", "pp": 1},
            "pp is 1, expected 2 or more with schedule zero_bubble",
        ),
        ({"schedule": "zb_v"}, "virtual_stages is 1, expected 2 with schedule zb_v"),
        (
            {"schedule": "zb_v", "pp": 1, "virtual_stages": 2},
            "pp is 1, expected 2 or more with schedule zb_v",
        ),
        (
            {"schedule": "dualpipe", "pp": 3, "micro_batches": 6},
            "pp is 3, expected a multiple of 2 with schedule dualpipe",
        ),
        (
            {"schedule": "dualpipe", "micro_batches": 5},
            "micro_batches is 5, expected a multiple of 2 with schedule dualpipe",
        ),
        (
            {"schedule": "dualpipe", "micro_batches": 2},
            "micro_batches is 2, expected 4 (2 · pp) or more with schedule dualpipe",
        ),
        (
            {"schedule": "dualpipe_v", "micro_batches": 3, "virtual_stages": 2},
            "micro_batches is 3, expected 4 (2 · pp) or more with schedule dualpipe_v",
        ),
        ({"schedule": "dualpipe", "micro_batches": 4}, "durations have 2 chunks, expected 4"),
        ({"pp": 0}, "pp is 0, expected 1 or more"),
        ({"micro_batches": 0}, "micro_batches is 0, expected 1 or more"),
        ({"virtual_stages": 2}, "virtual_stages is 2, expected 1 with schedule 1f1b"),
        ({"pp": 3}, "durations have 2 stages, expected 3"),
        ({"schedule": "interleaved", "virtual_stages": 2}, "durations have 2 chunks, expected 4"),
        ({"schedule": "interleaved", "pp": 1}, "pp is 1, expected 2 or more with schedule interleaved"),
        (
            {"schedule": "interleaved", "micro_batches": 3},
            "micro_batches is 3, expected a multiple of pp (2) with schedule interleaved",
        ),
        (
            {"durations": uniform(2, 1, 1, 1)},
            "weight_us has a time above 0, expected 0 with schedule 1f1b, which does not split backward passes",
        ),
        (
            {"durations": overlapped(first_us=np.zeros((1, 3)))},
            "overlap has first_us of shape (1, 3), expected (1, 2) as forward_us has",
        ),
        (
            {"durations": overlapped(last_us=np.full((1, 2), np.nan))},
            "overlap has a value of last_us that is too small, too large or not a number",
        ),
        (
            {"durations": overlapped(buckets=np.zeros((1, 2)))},
            "overlap has a value of buckets that is too small, too large or not a number",
        ),
        ({"buckets": 0}, "buckets has a number below 1, expected 1 or more"),
        ({"buckets": np.ones((1, 3))}, "buckets has shape (1, 3), expected (1, 2) as all_reduce_us has"),
    ],
)
def test_nonsense_is_refused(changed: dict[str, Any], line: str) -> None:
    arguments: dict[str, Any] = {
        "schedule": "1f1b",
        "pp": 2,
        "micro_batches": 4,
        "durations": uniform(2, 1, 1),
    }
    with pytest.raises(UsageError) as refused:
        simulate(
            **arguments | {name: value() if callable(value) else value for name, value in changed.items()}
        )
    assert str(refused.value) == line


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        (
            "backward_us",
            np.ones((1, 3)),
            "has shape (1, 3), expected (1, 2) as forward_us has, for 1 configuration(s)",
        ),
        (
            "update_us",
            np.ones((2, 2)),
            "has shape (2, 2), expected (1, 2) as all_reduce_us has, for 1 configuration(s)",
        ),
        ("weight_us", np.array([[0, -1.0]]), "has a time that is negative, above 1e+100 µs or not a number"),
        (
            "forward_us",
            np.array([[0, np.nan]]),
            "has a time that is negative, above 1e+100 µs or not a number",
        ),
        (
            "all_reduce_us",
            np.array([[0, np.inf]]),
            "has a time that is negative, above 1e+100 µs or not a number",
        ),
    ],
)
def test_wrong_durations_are_refused(name: str, value: np.ndarray[Any, Any], line: str) -> None:
    with pytest.raises(UsageError) as refused:
        replace(uniform(2, 1, 1), **{name: value})
    assert str(refused.value).startswith(f"{name} {line}")


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"buckets": (1,)}, "buckets is (1,), expected 1 or more for each of 2 stages"),
        ({"buckets": (1, 0)}, "buckets is (1, 0), expected 1 or more for each of 2 stages"),
        ({"buckets": (1, 1, 1)}, "buckets is (1, 1, 1), expected 1 or more for each of 2 stages"),
        (
            {"durations": uniform(2, 1, 1).take(np.array([0, 0]))},
            "durations have 2 configurations, expected 1",
        ),
    ],
)
def test_what_cannot_be_listed_is_refused(changed: dict[str, Any], line: str) -> None:
    arguments: dict[str, Any] = {
        "schedule": "1f1b",
        "pp": 2,
        "micro_batches": 4,
        "durations": uniform(2, 1, 1),
    }
    with pytest.raises(UsageError) as refused:
        step_timeline(**arguments | changed)
    assert str(refused.value) == line
    assert step_timeline(**arguments, buckets=(1, 2)).step_us == 10


def test_a_list_of_too_many_passes_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^a step of 5,000,000 passes, expected at most 4,000,000 to list"):
        step_timeline(schedule="1f1b", pp=5, micro_batches=500_000, durations=uniform(5, 1, 1))
