"""Memory of many layouts without their times."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kernelcast.runtime import ModelConfig, read_bundle
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.memory.stages import stage_memory
from kernelcast.runtime.search.needed_memory import look_for_fitting, needed_bytes
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.space import Space

MODEL = ModelConfig(
    name="tiny", hidden_size=64, sequence_length=24, attention_heads=8, layers=12, vocabulary_size=100
)
SPACE = Space(model=MODEL, gpus=(8, 16), global_batch=512, gpus_per_node=8)


@pytest.fixture
def bundle(make_bundle: Callable[..., Path]) -> Bundle:
    return read_bundle(make_bundle())


def test_every_layout_needs_what_its_fullest_stage_does(bundle: Bundle) -> None:
    layouts, _ = next(SPACE.blocks())
    assert len(layouts) > 3000  # more than are looked at together
    needed = needed_bytes(bundle, MODEL, layouts)
    assert needed.shape == (len(layouts),)
    for row in range(0, len(layouts), 311):
        stages = stage_memory(MODEL, layouts.parallelism(row), dtype="float32")
        # A stage alone has its parts rounded up to whole bytes.
        assert needed[row] == pytest.approx(max(stage.total_bytes for stage in stages), abs=8)


def test_what_needs_more_than_there_is_is_known_to(bundle: Bundle) -> None:
    layouts, _ = next(SPACE.blocks())
    needed = needed_bytes(bundle, MODEL, layouts)
    most = int(np.median(needed))
    found = needed_bytes(bundle, MODEL, layouts, most_bytes=most)
    fits = needed <= most
    assert (found[fits] == needed[fits]).all()
    assert (found[~fits] > most).all()
    assert (found <= needed).all()
    assert (found < needed).any()  # the first stage is not always the fullest


def test_a_search_for_something_that_fits_ends_where_it_is_found(bundle: Bundle) -> None:
    sizes = [needed_bytes(bundle, MODEL, layouts) for layouts, _ in SPACE.blocks()]
    assert len(sizes) > 1
    assert sum(units for _, units in SPACE.blocks()) == len(list(SPACE.units()))
    least, whole = min(block.min() for block in sizes), sum(map(len, sizes))

    def looked_at(usable_bytes: float | None) -> tuple[int, float]:
        memory = None if usable_bytes is None else int(usable_bytes)
        found = look_for_fitting(bundle, Question(space=SPACE, gpu_memory_bytes=memory))
        return found.counts.layouts, float(found.smallest.memory_bytes[0])

    in_first = float(np.min(sizes[0]))
    assert looked_at(None) == (len(sizes[0]), in_first)
    assert looked_at(np.ceil(in_first)) == (len(sizes[0]), in_first)
    # Nothing fits: all are looked at, and the smallest of all is known.
    assert looked_at(least - 1) == (whole, least)
