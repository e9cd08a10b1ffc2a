"""Which step an instant belongs to, and what counts as a scope of the program."""

from dataclasses import replace

import numpy as np
import pytest

from kernelcast.collector.ingest.scopes import Steps, is_scope
from kernelcast.collector.traces.events import NO_ID, Events


def test_the_later_of_overlapping_steps_counts_up_to_its_end() -> None:
    steps = replace(Events(), start_us=np.array([10.0, 20.0, 40.0]), duration_us=np.array([12.0, 5.0, 10.0]))
    times_us = np.array([9.9, 10.0, 19.9, 20.0, 22.0, 25.0, 25.1, 40.0, 50.0, 50.1])
    assert Steps(steps).at(times_us).tolist() == [NO_ID, 0, 0, 1, 1, 1, NO_ID, 2, 2, NO_ID]
    assert Steps(Events()).at(times_us[:2]).tolist() == [NO_ID, NO_ID]


@pytest.mark.parametrize(
    ("category", "name", "found"),
    [
        ("user_annotation", "data loading", True),
        ("user_annotation", "ProfilerStep#3", False),
        ("user_annotation", "Training step 12", False),
        ("user_annotation", "iteration_7", False),
        ("user_annotation", "step 12 of many", True),
        ("user_annotation", "nccl:all_reduce", False),
        ("user_annotation", "gloo:all_reduce", False),
        ("python_function", "nn.Module: Linear_0", True),
        ("python_function", "forward", False),
        ("cpu_op", "aten::mm", False),
    ],
)
def test_scopes_are_annotations_and_modules_of_the_program(category: str, name: str, found: bool) -> None:
    assert is_scope(category, name) is found
