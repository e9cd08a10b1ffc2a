"""Layouts: derived sizes, and one line for what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from kernelcast.runtime import Cluster, ModelConfig, Parallelism, UsageError

LAYOUT: dict[str, Any] = {"pp": 4, "tp": 4, "dp": 8, "micro_batch": 4, "micro_batches": 16}


def test_derived_sizes() -> None:
    layout = Parallelism(**LAYOUT)
    assert layout.world_size == 128
    assert layout.samples_per_update == 512
    assert layout.recompute == "none"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"micro_batch": 0}, "micro_batch is 0, expected a whole number from 1 to 1000000"),
        ({"micro_batches": -1}, "micro_batches is -1, expected a whole number from 1 to 1000000"),
        ({"pp": True}, "pp is true, expected a whole number from 1 to 1000000"),
        ({"tp": 2.0}, "tp is 2.0, expected a whole number from 1 to 1000000"),
        ({"dp": 10**7}, "dp is 10000000, expected a whole number from 1 to 1000000"),
        ({"recompute": "some"}, "recompute is 'some', expected none, selective or full"),
    ],
)
def test_wrong_layouts(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Parallelism(**LAYOUT | change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"schedule": "chimera"},
            "schedule is 'chimera', expected gpipe, 1f1b, interleaved, zero_bubble, zb_v, dualpipe or dualpipe_v",
        ),
        ({"schedule": "zero_bubble", "pp": 1}, "pp is 1, expected 2 or more with schedule zero_bubble"),
        ({"schedule": "zb_v", "virtual_stages": 3}, "virtual_stages is 3, expected 2 with schedule zb_v"),
        (
            {"schedule": "dualpipe", "pp": 3},
            "pp is 3, expected a multiple of 2 with schedule dualpipe",
        ),
        ({"virtual_stages": 2}, "virtual_stages is 2, expected 1 with schedule 1f1b"),
        ({"virtual_stages": 0}, "virtual_stages is 0, expected a whole number from 1 to 1000000"),
        ({"schedule": "interleaved", "pp": 1}, "pp is 1, expected 2 or more with schedule interleaved"),
        (
            {"schedule": "interleaved", "micro_batches": 6},
            "micro_batches is 6, expected a multiple of pp (4) with schedule interleaved",
        ),
        ({"zero": 4}, "zero is 4, expected a whole number from 0 to 3"),
        (
            {"recompute_modules": ("mlp", "per_op")},
            "recompute_modules is 'mlp,per_op', expected per_op alone, or modules",
        ),
        ({"sequence_parallel": 1}, "sequence_parallel is 1, expected true or false"),
        ({"layer_counts": (1, 2)}, "layer_counts is (1, 2), expected one number per stage, 4 in all"),
        (
            {"layer_counts": [1, 2, 3, 4]},
            "layer_counts is [1, 2, 3, 4], expected one number per stage, 4 in all",
        ),
        (
            {"layer_counts": (1, 2, 3, -1)},
            "layer_counts[3] is -1, expected a whole number from 0 to 1000000",
        ),
        ({"pp": 10**4000}, "pp is 1" + "0" * 79 + ", expected a whole number from 1 to 1000000"),
        ({"pp": 10**5000}, "pp is a number too long to show, expected a whole number from 1 to 1000000"),
    ],
)
def test_fields_that_do_not_go_together(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Parallelism(**LAYOUT | change)
    assert str(caught.value) == message


def test_a_global_batch_says_how_many_micro_batches() -> None:
    layout = {"pp": 4, "tp": 4, "dp": 8, "micro_batch": 4}
    assert Parallelism.from_global_batch(global_batch=512, **layout) == Parallelism(**LAYOUT)
    with pytest.raises(
        UsageError, match=r"^global_batch is 500, expected a multiple of micro_batch · dp \(4 · 8 = 32\)$"
    ):
        Parallelism.from_global_batch(global_batch=500, **layout)
    with pytest.raises(UsageError, match=r"^dp is 0, expected a whole number from 1 to 1000000$"):
        Parallelism.from_global_batch(global_batch=500, **layout | {"dp": 0})
    with pytest.raises(UsageError, match=r"^global_batch is 0, expected a whole number from 1 to "):
        Parallelism.from_global_batch(global_batch=0, **layout)


def test_a_model_that_cannot_be_cut_so() -> None:
    model = ModelConfig(
        name="odd", hidden_size=8, sequence_length=5, attention_heads=4, layers=4, vocabulary_size=9
    )
    Parallelism(**LAYOUT).check(model)
    with pytest.raises(
        UsageError, match=r"^tp is 4, expected a divisor of sequence_length \(5\) of model odd$"
    ):
        Parallelism(**LAYOUT, sequence_parallel=True).check(model)
    unfused = replace(model, sequence_length=8, attention="unfused")
    with pytest.raises(UsageError, match=r"^cp is 2, expected 1 with attention 'unfused' of model odd: seq"):
        Parallelism(**LAYOUT, cp=2).check(unfused)
    few, two = replace(model, sequence_length=8, kv_heads=2), LAYOUT | {"tp": 2}
    Parallelism(**two, context_exchange="all_to_all").check(few)
    with pytest.raises(
        UsageError, match=r"^cp · tp is 4, expected a divisor of kv_heads \(2\) of model odd$"
    ):
        Parallelism(**two, cp=2, context_exchange="all_to_all").check(few)
    with pytest.raises(UsageError, match=r"^layer_counts add up to 5, expected 4, the layers of model odd$"):
        Parallelism(**LAYOUT, layer_counts=(1, 2, 1, 1)).check(model)


def test_wrong_clusters() -> None:
    with pytest.raises(UsageError, match=r"^gpus_per_node is 0, expected a whole number from 1 to 1000000$"):
        Cluster(gpus_per_node=0)
