"""Questions from plain values, as options and JSON bodies give them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelcast.runtime import Estimator, ModelConfig, Parallelism, UsageError, read_bundle
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.estimate.defaults import usual_gpu_memory_bytes, usual_reserved_bytes
from kernelcast.runtime.estimate.device_memory import memory_spread
from kernelcast.runtime.request.field_types import NumberSet
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.read_question import MOST_ITEMS, read_question
from kernelcast.runtime.step.layouts import Layouts

MODEL = ModelConfig(
    name="tiny", hidden_size=64, sequence_length=24, attention_heads=8, layers=6, vocabulary_size=100
)


@pytest.fixture
def bundle(make_bundle: Callable[..., Path]) -> Bundle:
    return read_bundle(make_bundle(without=["moe"]))


def test_a_question_of_plain_values(bundle: Bundle) -> None:
    values: dict[str, Any] = {
        "gpus": "8, 16",
        "global_batch": 32,
        "tp": "1,4-",
        "dp": [2, 4],
        "pp": 2,
        "schedules": ["1f1b"],
        "zero": "1,2",
        "top": 3,
        "gpu_memory_bytes": 100,
        "reserved_memory_bytes": 7,
        "dropout": 0.25,
    }
    found = read_question(values, model=MODEL, bundle=bundle)
    space = found.space
    assert (space.gpus, space.global_batch, space.gpus_per_node) == ((8, 16), 32, 16)
    assert space.tp == NumberSet(((1, 1), (4, None)))
    assert space.dp == NumberSet(((2, 2), (4, 4)))
    assert space.pp == NumberSet(((2, 2),))
    assert (space.schedules, space.zero) == (("1f1b",), (1, 2))
    assert space.common["dropout"] == 0.25
    assert found.top == 3
    # As much as fits with a probability of 0.95, by how far measured memory lies from predicted.
    one = Layouts.of(Parallelism(pp=2, tp=1, dp=2, micro_batch=1, micro_batches=2))
    [usable] = found.usable_bytes(one)
    assert usable == 93 * memory_spread(False).largest_share(0.95) // 1 < 93
    even = read_question({**values, "fit_probability": 0.5}, model=MODEL, bundle=bundle)
    assert usable < even.usable_bytes(one)[0]
    # Of a bundle that knows no nodes and no GPUs.
    plain = read_question({"gpus": [8], "global_batch": 32}, model=MODEL, bundle=bundle)
    assert (plain.space.gpus_per_node, plain.gpu_memory_bytes, plain.reserved_memory_bytes) == (8, None, 0)
    own = read_question({"gpus": [8], "global_batch": 32, "gpus_per_node": 4}, model=MODEL, bundle=bundle)
    assert own.space.gpus_per_node == 4
    # Of a bundle of GPUs in nodes of eight.
    shipped = Estimator.load("hardware:h100-sxm").bundle
    of_nodes = read_question({"gpus": [32], "global_batch": 32}, model=MODEL, bundle=shipped)
    assert of_nodes.space.gpus_per_node == 8
    assert of_nodes.gpu_memory_bytes == usual_gpu_memory_bytes(shipped) is not None
    assert of_nodes.reserved_memory_bytes == usual_reserved_bytes(shipped)
    anything = read_question(
        {"gpus": [32], "global_batch": 32, "gpu_memory_bytes": None}, model=MODEL, bundle=shipped
    )
    assert anything.usable_bytes(one).tolist() == [np.inf]
    assert (of_nodes.has_nccl, plain.has_nccl) == (True, False)


def test_lists_have_some_different_items(bundle: Bundle) -> None:
    def ask(gpus: object) -> Question:
        return read_question({"gpus": gpus, "global_batch": 32}, model=MODEL, bundle=bundle)

    assert len(ask(list(range(1, MOST_ITEMS + 1))).space.gpus) == MOST_ITEMS == 64
    for gpus, line in (
        ([], "gpus is [], expected 1 to 64 values"),
        (list(range(1, 66)), "expected 1 to 64 values"),
        ([8, 8], "gpus is (8, 8), expected one or more different values"),
        ("8,x", "gpus is 'x', expected a whole number"),
        ([8, "4"], "gpus is '4', expected a whole number"),
    ):
        with pytest.raises(UsageError) as refused:
            ask(gpus)
        assert line in str(refused.value)
    for name, text in (("virtual_stages", "0"), ("micro_batch", "2,0-4"), ("dp", "99999999-")):
        expected = f"{name} is '{text}', expected numbers and ranges that begin at a whole number from 1 to "
        with pytest.raises(UsageError, match=rf"^{expected}1000000$"):
            read_question({"gpus": [8], "global_batch": 32, name: text}, model=MODEL, bundle=bundle)
    for name in ("gpus", "global_batch"):
        values = {"gpus": [8], "global_batch": 32}
        values.pop(name)
        with pytest.raises(UsageError, match=rf"^{name} is not given in the question$"):
            read_question(values, model=MODEL, bundle=bundle)
