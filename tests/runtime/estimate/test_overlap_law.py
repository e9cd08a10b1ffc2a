"""A law of overlap: switching one on never makes a step slower than leaving it off, but for two costs.

Buckets: gradients and parameters that overlap move in buckets, and many collectives take longer than one of all (their
latency, and lower rates at smaller sizes). Pipelines: a pass that shares its device or waits for parameters is longer,
and the next stage waits for it, so that stages add up; without overlap, collectives of stages run at the same time.
Tensor parallelism has neither cost.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kernelcast.runtime import Cluster, Estimate, Estimator, Parallelism, UsageError, load_model

DENSE = replace(load_model("llama-3-8b"), layers=8, sequence_length=2048)
_ROUNDING = 1e-9


@pytest.fixture(scope="module")
def h100() -> Estimator:
    return Estimator.load("h100-sxm")


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a layout without any overlap."""
    pp = draw(st.sampled_from([1, 1, 2, 4]))
    tp = draw(st.sampled_from([1, 2, 8]))
    return {
        "pp": pp,
        "tp": tp,
        "dp": draw(st.sampled_from([1, 2, 8, 64])),
        "micro_batch": draw(st.sampled_from([1, 4])),
        "micro_batches": pp * draw(st.sampled_from([1, 2, 4])),
        "virtual_stages": 2 if pp > 1 and draw(st.booleans()) else 1,
        "zero": draw(st.sampled_from([0, 1, 2])),
        "sequence_parallel": tp > 1 and draw(st.booleans()),
        "recompute": draw(st.sampled_from(["none", "full"])),
        "reduce_dtype": draw(st.sampled_from(["same", "float32"])),
        "gradient_collective": draw(st.sampled_from(["all_reduce", "reduce_scatter"])),
        "exposed_share": draw(st.sampled_from([0.0, 0.25, 0.5])),
    }


def predicted(estimator: Estimator, model: Any, fields: dict[str, Any]) -> Estimate:
    schedule = "interleaved" if fields["virtual_stages"] > 1 else "1f1b"
    try:
        layout = Parallelism(schedule=schedule, **fields)
        layout.check(model)
    except UsageError:
        assume(False)
    cluster = Cluster(gpus_per_node=8)
    return estimator.predict(model=model, parallelism=layout, cluster=cluster, interval=False)


@pytest.mark.parametrize(
    "overlap",
    [
        {"overlap_gradients": True},
        {"overlap_parameters": True},
        {"overlap_gradients": True, "overlap_parameters": True},
        {"tensor_overlap": "weight_gradients"},
        {"tensor_overlap": "products"},
    ],
    ids=str,
)
@given(fields=layouts())
def test_an_overlap_never_makes_a_step_slower(
    h100: Estimator, overlap: dict[str, Any], fields: dict[str, Any]
) -> None:
    off, on = (predicted(h100, DENSE, fields | more) for more in ({}, overlap))
    assert on.step_time_s <= (off.step_time_s + buckets_s(on, off) + along_pipeline_s(on, off)) * (
        1 + _ROUNDING
    )


def buckets_s(on: Estimate, off: Estimate) -> float:
    """What the collectives of the costliest stage take longer in buckets."""
    return max(
        max(0.0, one.all_reduce_s - other.all_reduce_s) + max(0.0, one.all_gather_s - other.all_gather_s)
        for one, other in zip(on.stages, off.stages, strict=True)
    )


def along_pipeline_s(on: Estimate, off: Estimate) -> float:
    """What overlapped collectives may add to the passes of all stages together; without a pipeline it is not needed."""
    layout = on.parallelism
    if layout.pp == 1:
        return 0.0
    return sum(
        layout.exposed_share * one.all_reduce_s + max(one.all_gather_s, other.all_gather_s)
        for one, other in zip(on.stages, off.stages, strict=True)
    )
