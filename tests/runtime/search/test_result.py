"""Words of an answer without layouts, by hand."""

from typing import Any

import pytest

from kernelcast.runtime import ModelConfig, Parallelism
from kernelcast.runtime.search import Question, Space
from kernelcast.runtime.search.found import Counts
from kernelcast.runtime.search.result import SearchResult, Smallest, layout_text, plain_layout
from kernelcast.runtime.search.space import Refusals

MODEL = ModelConfig(
    name="tiny", hidden_size=64, sequence_length=24, attention_heads=8, layers=6, vocabulary_size=100
)
LAYOUT: dict[str, Any] = {"pp": 2, "tp": 4, "dp": 3, "micro_batch": 5, "micro_batches": 6, "zero": 0}


def nothing(
    counts: Counts, *, gpus: tuple[int, ...] = (24,), smallest: Smallest | None = None, **memory: int
) -> SearchResult:
    space = Space(model=MODEL, gpus=gpus, global_batch=90, gpus_per_node=4)
    return SearchResult(
        question=Question(space=space, **memory),  # type: ignore[arg-type]
        counts=counts,
        refusals=Refusals(),
        problems=("no gemm", "no gelu"),
        top=(),
        front=(),
        smallest=smallest,
        seconds=0.5,
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "pp 2 × tp 4 × dp 3, micro-batch 5 × 6, 1f1b, recompute none, ZeRO 0"),
        (
            {"schedule": "interleaved", "virtual_stages": 2, "zero": 1, "sequence_parallel": True},
            "pp 2 × tp 4 × dp 3, micro-batch 5 × 6, interleaved × 2, recompute none, ZeRO 1, sequence parallel",
        ),
        (
            {"recompute": "full", "layer_counts": (4, 2)},
            "pp 2 × tp 4 × dp 3, micro-batch 5 × 6, 1f1b, recompute full, ZeRO 0, layers 4, 2",
        ),
    ],
)
def test_a_layout_in_a_line(changes: dict[str, Any], text: str) -> None:
    assert layout_text(Parallelism(**LAYOUT | changes)) == text


def test_fields_of_a_layout() -> None:
    values = plain_layout(Parallelism(**LAYOUT))
    assert values["world_size"] == 24
    assert {name: values[name] for name in LAYOUT} == LAYOUT


def test_nothing_fits() -> None:
    smallest = Smallest(parallelism=Parallelism(**LAYOUT), memory_bytes=5 * 2**30 // 2)
    found = nothing(Counts(layouts=1234), gpus=(8, 24), smallest=smallest, gpu_memory_bytes=3 * 2**29)
    expected = (
        "the smallest needs 2.5 GiB (pp 2 × tp 4 × dp 3, micro-batch 5 × 6, 1f1b, recompute none, ZeRO 0)"
    )
    assert found.why_nothing() == f"none of 1,234 layouts on 8 or 24 device(s) fits into 1.5 GiB: {expected}"
    reserved = {"gpu_memory_bytes": 3 * 2**30, "reserved_memory_bytes": 2**30}
    assert nothing(Counts(layouts=2), smallest=smallest, **reserved).why_nothing() == (
        f"none of 2 layouts on 24 device(s) fits into 2.0 GiB (of 3.0 GiB, 1.0 GiB reserved): {expected}"
    )


def test_what_the_bundle_lacks_comes_first() -> None:
    smallest = Smallest(parallelism=Parallelism(**LAYOUT), memory_bytes=1)
    found = nothing(Counts(layouts=2, unanswered=1), smallest=smallest, gpu_memory_bytes=2**30)
    assert found.why_nothing() == "every layout needs what the bundle has no answer to: no gemm; no gelu"
    assert found.best is None
    document = found.to_dict()
    assert (document["best"], document["top"], document["front"]) == (None, [], [])
    assert (document["seconds"], document["layouts"], document["unanswered"]) == (0.5, 2, 1)
    assert document["smallest"]["memory_bytes"] == 1
    assert document["asked"]["global_batch"] == 90
