"""Simulated steps of many shapes and durations at once: every stage ends when the last of its listed passes does.

Hypothesis rarely draws a long pipeline whose stages wait for each other just where a schedule's middle ends; of
hundreds of durations in small whole numbers, with zeros, several always do.
"""

from typing import Any

import numpy as np
import pytest

from kernelcast.runtime.pipeline.durations import Durations, Overlap
from kernelcast.runtime.pipeline.pass_times import step_timeline
from kernelcast.runtime.pipeline.simulate import simulate

CONFIGS = 40


def whole_durations(
    generator: np.random.Generator, *, stages: int, chunks: int, is_split: bool, overlaps: bool
) -> Durations:
    """Whole µs, a third of them 0, some ten times as long as others."""

    def draw(columns: int) -> np.ndarray[Any, Any]:
        shape = CONFIGS, columns
        return generator.integers(0, 4, shape) * generator.choice([0.0, 1.0, 10.0], shape)

    overlap = Overlap(
        first_us=draw(chunks),
        last_us=draw(chunks),
        buckets=generator.integers(1, 5, (CONFIGS, stages)).astype(np.float64),
        link_us=draw(stages),
    )
    return Durations(
        forward_us=draw(chunks),
        backward_us=draw(chunks),
        weight_us=draw(chunks) if is_split else np.zeros((CONFIGS, chunks)),
        send_forward_us=draw(chunks),
        send_backward_us=draw(chunks),
        all_reduce_us=draw(stages),
        update_us=draw(stages),
        overlap=overlap if overlaps else None,
    )


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("pp", [1, 2, 5, 6, 7])
@pytest.mark.parametrize(
    ("schedule", "virtual_stages"),
    [("gpipe", 1), ("1f1b", 1), ("zero_bubble", 1), ("interleaved", 2), ("interleaved", 3)],
)
def test_the_end_of_every_stage(schedule: Any, virtual_stages: int, pp: int, overlaps: bool) -> None:
    is_interleaved = schedule == "interleaved"
    if schedule in ("interleaved", "zero_bubble") and pp == 1:
        return
    generator = np.random.default_rng(pp)
    # Fewer micro-batches than stages, as many, and enough for the middle to repeat.
    for micro_batches in (2 * pp, 5 * pp) if is_interleaved else (pp - 1 or 1, pp, 2 * pp + 1, 4 * pp):
        durations = whole_durations(
            generator,
            stages=pp,
            chunks=pp * virtual_stages,
            is_split=schedule == "zero_bubble",
            overlaps=overlaps,
        )
        shape: dict[str, Any] = {
            "schedule": schedule,
            "pp": pp,
            "micro_batches": micro_batches,
            "virtual_stages": virtual_stages,
        }
        found = simulate(**shape, durations=durations)
        for row in range(CONFIGS):
            listed = step_timeline(**shape, durations=durations.take(slice(row, row + 1)))
            assert found.compute_end_us[row].tolist() == [stage.ends_us[-1] for stage in listed.stages]
            assert found.end_us[row].tolist() == [stage.update.end_us for stage in listed.stages]
