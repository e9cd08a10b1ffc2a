"""Figures of an answer, and words of one without layouts, by hand."""

from dataclasses import asdict
from typing import Any

import pytest

from kernelcast.runtime import Estimator, ModelConfig, Parallelism
from kernelcast.runtime.estimate.training import training
from kernelcast.runtime.request.models import load_model
from kernelcast.runtime.search.partial_result import Counts
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.read_question import read_question
from kernelcast.runtime.search.refusals import Refusals
from kernelcast.runtime.search.result import SearchResult, Smallest, layout_text, plain_layout
from kernelcast.runtime.search.search import search
from kernelcast.runtime.search.space import Space

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
    assert (
        found.why_nothing() == "every layout needs operators that the bundle cannot answer: no gemm; no gelu"
    )
    assert found.best is None
    document = found.to_dict()
    assert (document["best"], document["top"], document["front"]) == (None, [], [])
    assert (document["seconds"], document["layouts"], document["unanswered"]) == (0.5, 2, 1)
    assert document["smallest"]["memory_bytes"] == 1
    assert document["asked"]["global_batch"] == 90


def test_figures_of_an_answer() -> None:
    estimator, model = Estimator.load("hardware:h100-sxm"), load_model("llama-2-7b")
    asked = {"gpus": 8, "global_batch": 16, "pp": 1, "tp": 2, "zero": [1], "recompute": ["none"], "top": 2}
    found = search(estimator, read_question(asked, model=model, bundle=estimator.bundle))
    assert [one is found.best for one in found.top] == [True, False]
    best = found.top[0]
    estimate = best.estimate
    assert estimate.interval_s is not None
    figures = {
        "parallelism": {**asdict(best.parallelism), "world_size": 8},
        "step_time_s": estimate.step_time_s,
        "interval_s": list(estimate.interval_s),
        "tokens_per_s": estimate.tokens_per_s,
        "tokens_per_s_per_gpu": estimate.tokens_per_s / 8,
        "tflops_per_device": estimate.flops_per_s_per_device / 1e12,
        "mfu": estimate.mfu,
        "memory_bytes": estimate.memory.largest_bytes,
        **estimate.warning_values(),
    }
    assert best.to_dict() == figures
    assert best.to_dict(tokens=10**9) == figures | training(estimate, 10**9).to_dict()
    document = found.to_dict(tokens=10**9)
    assert document["best"] == document["top"][0] == best.to_dict(tokens=10**9)
    assert document["front"] == [one.to_dict(tokens=10**9) for one in found.front]
    pytest.importorskip("pandas")
    for rows, frame in ((found.top, found.to_pandas()), (found.front, found.to_pandas(front=True))):
        assert frame["step_time_s"].tolist() == [one.step_time_s for one in rows]
        assert list(zip(frame["low_s"], frame["high_s"], strict=True)) == [
            one.estimate.interval_s for one in rows
        ]
