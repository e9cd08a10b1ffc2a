"""What a question leaves to layouts, and how they are ranked."""

from typing import Any

import numpy as np
import pytest

from kernelcast.runtime import ModelConfig, Parallelism, UsageError
from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.estimate.device_memory import MemorySpread
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.space import Space
from kernelcast.runtime.step.layouts import COLUMNS, Layouts

MODEL = ModelConfig(
    name="tiny", hidden_size=64, sequence_length=24, attention_heads=8, layers=6, vocabulary_size=100
)
SPACE = Space(model=MODEL, gpus=(8,), global_batch=8, gpus_per_node=4)


@pytest.mark.parametrize(
    ("memory", "reserved", "usable"),
    [(None, 0, None), (None, 30, None), (100, 0, 100), (100, 30, 70), (100, 100, 0), (100, 130, 0)],
)
def test_what_is_reserved_is_not_usable(memory: int | None, reserved: int, usable: int | None) -> None:
    question = Question(space=SPACE, gpu_memory_bytes=memory, reserved_memory_bytes=reserved)
    layouts = Layouts.of(Parallelism(pp=1, tp=2, dp=4, micro_batch=1, micro_batches=2))
    assert question.usable_bytes(layouts).tolist() == [np.inf if usable is None else usable]
    if usable is not None:
        both = replace(question, gpu_memory_bytes=reserved + (1 << 30), has_nccl=True)
        assert both.usable_bytes(layouts).tolist() == [(1024 - 342 - 392) << 20]


@pytest.mark.parametrize("probability", [0.05, 0.5, 0.95])
def test_sizes_are_counted_up_to_all_that_may_fit(probability: float) -> None:
    spread = MemorySpread(low=-0.1, middle=0.0, high=0.1)
    question = Question(space=SPACE, gpu_memory_bytes=1000, spread=spread, fit_probability=probability)
    layouts = Layouts.of(Parallelism(pp=1, tp=2, dp=4, micro_batch=1, micro_batches=2))
    [usable] = question.usable_bytes(layouts)
    assert (usable > 1000) == (probability < 0.5)
    assert question.most_bytes is not None
    assert usable <= question.most_bytes


def test_layouts_are_ranked_by_time_or_by_time_of_all_devices() -> None:
    table = np.zeros((2, len(COLUMNS)), dtype=np.int64)
    table[:, 1:] = 1
    table[1, 1:3] = 2, 3  # pp and tp: 6 devices
    step_us = np.array([50.0, 10])
    by_time, by_devices = (
        Question(space=SPACE, rank_by=how).score(Layouts(table, Parallelism.unchecked()), step_us).tolist()  # type: ignore[arg-type]
        for how in ("step-time", "tokens-per-gpu")
    )
    assert by_time == [50, 10]
    assert by_devices == [50, 60]


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"timeline": "guess"}, "timeline is 'guess', expected"),
        ({"rank_by": "price"}, "rank_by is 'price', expected"),
        ({"top": 0}, "top is 0, expected a whole number from 1 to 10000"),
        ({"bucket_entries": 0}, "bucket_entries is 0, expected a whole number from 1 to"),
        ({"gpu_memory_bytes": -1}, "gpu_memory_bytes is -1, expected"),
        ({"reserved_memory_bytes": -1}, "reserved_memory_bytes is -1, expected"),
    ],
)
def test_nonsense_is_refused(wrong: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError) as refused:
        Question(space=SPACE, **wrong)
    assert str(refused.value).startswith(line)
