"""A law of overlap: switching one on never makes a step slower than leaving it off, but for two costs.

Buckets: gradients and parameters that overlap move in buckets, and many collectives take longer than one of all (their
latency, and lower rates at smaller sizes). Pipelines: a pass that shares its device or waits for parameters is longer,
and the next stage waits for it, so that stages add up; without overlap, collectives of stages run at the same time.
Tensor and expert parallelism have neither cost.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kernelcast.runtime import Cluster, Estimate, Estimator, ModelConfig, Parallelism, UsageError, load_model
from kernelcast.runtime.step.op import Component

DENSE = replace(load_model("llama-3-8b"), layers=8, sequence_length=2048)
# Its experts drop no token: the device waits for the host in every layer.
SPARSE = replace(load_model("qwen3-30b-a3b"), layers=8, sequence_length=2048)
_ROUNDING = 1e-9


@pytest.fixture(scope="module")
def h100() -> Estimator:
    return Estimator.load("h100-sxm")


@st.composite
def layouts(draw: st.DrawFn, model: ModelConfig) -> dict[str, Any]:
    """Fields of a layout without any overlap."""
    pp = draw(st.sampled_from([1, 1, 2, 4]))
    tp = draw(st.sampled_from([1, 2, 4]))
    schedules = ["1f1b", "gpipe", "interleaved", "zero_bubble", "zb_v", "dualpipe", "dualpipe_v"]
    schedule = draw(st.sampled_from(schedules)) if pp > 1 else "1f1b"
    experts = {
        "ep": draw(st.sampled_from([1, 2, 8])),
        "expert_dispatcher": draw(st.sampled_from(["all_to_all", "deepep", "hybridep"])),
    }
    return {
        "pp": pp,
        "tp": tp,
        "dp": draw(st.sampled_from([1, 2, 8, 64])),
        "cp": draw(st.sampled_from([1, 1, 2])),
        "micro_batch": draw(st.sampled_from([1, 4])),
        "micro_batches": pp * draw(st.sampled_from([1, 2, 4])),
        "schedule": schedule,
        "virtual_stages": 2 if schedule == "interleaved" else 1,
        "zero": draw(st.sampled_from([0, 1, 2, 3])),
        "sequence_parallel": tp > 1 and (model is SPARSE or draw(st.booleans())),
        "recompute": draw(st.sampled_from(["none", "full"])),
        "recompute_layers": draw(st.sampled_from([0, 0, 1])),
        "reduce_dtype": draw(st.sampled_from(["same", "float32"])),
        "gradient_collective": draw(st.sampled_from(["all_reduce", "reduce_scatter"])),
        "exposed_share": draw(st.sampled_from([0.0, 0.25, 0.5, 1.0])),
        "host_launch_us": draw(st.sampled_from([0.0, 20.0])),
        **(experts if model is SPARSE else {}),
    }


def predicted(estimator: Estimator, model: ModelConfig, fields: dict[str, Any]) -> Estimate:
    try:
        layout = Parallelism(**fields)
        layout.check(model)
    except UsageError:
        assume(False)
    cluster = Cluster(gpus_per_node=8)
    return estimator.predict(model=model, parallelism=layout, cluster=cluster, interval=False)


OVERLAPS: list[dict[str, Any]] = [
    {"overlap_gradients": True},
    {"overlap_parameters": True},
    {"overlap_gradients": True, "overlap_parameters": True},
    {"tensor_overlap": "weight_gradients"},
    {"tensor_overlap": "products"},
]


@pytest.mark.parametrize(
    ("model", "overlap"),
    [
        *((model, overlap) for model in (DENSE, SPARSE) for overlap in OVERLAPS),
        (SPARSE, {"expert_overlap": True}),  # a dense model refuses it
    ],
    ids=lambda one: getattr(one, "name", str(one)),
)
@given(data=st.data())
def test_an_overlap_never_makes_a_step_slower(
    h100: Estimator, overlap: dict[str, Any], model: ModelConfig, data: st.DataObject
) -> None:
    fields = data.draw(layouts(model))
    off, on = (predicted(h100, model, fields | more) for more in ({}, overlap))
    assert on.step_time_s <= (off.step_time_s + buckets_s(on, off) + along_pipeline_s(on, off)) * (
        1 + _ROUNDING
    )


def buckets_s(on: Estimate, off: Estimate) -> float:
    """What the collectives of updates take longer in buckets."""
    of_update = (Component.ALL_REDUCE, Component.ALL_GATHER)
    both = [sum(row.total_s for row in one.operators if row.component in of_update) for one in (on, off)]
    return max(0.0, both[0] - both[1])


def along_pipeline_s(on: Estimate, off: Estimate) -> float:
    """What overlapped collectives may add to the passes of all stages together; without a pipeline it is not needed."""
    layout = on.parallelism
    if layout.pp == 1:
        return 0.0
    return sum(
        layout.exposed_share * one.all_reduce_s + max(one.all_gather_s, other.all_gather_s)
        for one, other in zip(on.stages, off.stages, strict=True)
    )
