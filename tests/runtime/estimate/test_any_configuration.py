"""Any configuration, sound or not, gives an estimate or an error that names what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from kernelcast.runtime import Cluster, Estimator, KernelcastError, ModelConfig, Parallelism

Make = Callable[..., Path]

# Sound configurations; some get one field of nonsense.
SIZE_FIELDS = ("hidden_size", "sequence_length", "attention_heads", "layers", "vocabulary_size")
DEGREE_FIELDS = (
    "pp",
    "tp",
    "dp",
    "micro_batch",
    "micro_batches",
    "virtual_stages",
    "zero",
    "schedule",
    "recompute",
    "sequence_parallel",
    "layer_counts",
)
nonsense = st.sampled_from([-1, 0, 3, 10**6, 2**31 - 1, 2**31, 10**30, 1.5, True, "4", None])
architectures = {
    "name": st.just("any"),
    "norm": st.sampled_from(["layer_norm", "rms_norm"]),
    "activation": st.sampled_from(["gelu", "swiglu"]),
    "attention": st.sampled_from(["flash", "fused_softmax", "unfused"]),
    "rotary": st.booleans(),
    "parallel_residual": st.booleans(),
}
sound_models = st.fixed_dictionaries(
    architectures
    | {
        "hidden_size": st.integers(1, 512).map(lambda size: 16 * size),
        "sequence_length": st.integers(1, 10**5).map(lambda length: 4 * length),
        "attention_heads": st.sampled_from([4, 8, 16]),
        "layers": st.integers(1, 200),
        "vocabulary_size": st.integers(1, 10**6),
    },
    optional={
        "kv_heads": st.sampled_from([1, 2, 4]),
        "mlp_size": st.integers(1, 10**4).map(lambda size: 4 * size),
    },
)
sound_layouts = st.fixed_dictionaries(
    {
        "pp": st.integers(1, 8),
        "tp": st.sampled_from([1, 2, 4]),
        "dp": st.integers(1, 64),
        "micro_batch": st.integers(1, 64),
        "micro_batches": st.integers(1, 1000),
    },
    optional={
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "schedule": st.sampled_from(["gpipe", "1f1b", "zero_bubble"]),
        "zero": st.integers(0, 3),
        "sequence_parallel": st.booleans(),
        "gradient_collective": st.sampled_from(["all_reduce", "reduce_scatter"]),
        "shard_group": st.integers(0, 4),
        "overlap_gradients": st.booleans(),
        "overlap_parameters": st.booleans(),
        "overlap_bucket": st.sampled_from([0, 1, 10**6]),
        "tensor_overlap": st.sampled_from(["none", "weight_gradients", "products"]),
    },
)
interleaved_layouts = st.builds(
    lambda layout, pp, turns, virtual_stages: (
        layout
        | {
            "schedule": "interleaved",
            "pp": pp,
            "micro_batches": turns * pp,
            "virtual_stages": virtual_stages,
        }
    ),
    sound_layouts,
    st.integers(2, 6),
    st.integers(1, 20),
    st.integers(1, 3),
)


def rarely(broken: st.SearchStrategy[Any], sound: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 9).flatmap(lambda number: broken if number == 9 else sound)


def with_nonsense(fields: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    broken = st.builds(lambda name, value: {name: value}, st.sampled_from(fields), nonsense)
    return rarely(broken, st.just({}))


models = st.builds(dict.__or__, sound_models, with_nonsense(SIZE_FIELDS))
layouts = st.builds(dict.__or__, sound_layouts | interleaved_layouts, with_nonsense(DEGREE_FIELDS))
nodes = rarely(nonsense, st.none() | st.integers(1, 16))
buckets = rarely(nonsense, st.integers(1, 10**9))
timelines = rarely(st.just("guess"), st.sampled_from(["simulate", "closed-form"]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(
    model=models,
    layout=layouts,
    gpus_per_node=nodes,
    bucket_entries=buckets,
    timeline=timelines,
    interval=st.booleans(),
)
def test_any_configuration_gives_an_estimate_or_a_named_error(
    estimator: Estimator,
    model: dict[str, Any],
    layout: dict[str, Any],
    gpus_per_node: int | None,
    bucket_entries: int,
    timeline: Any,
    interval: bool,
) -> None:
    problem = ""
    try:
        parallelism = Parallelism(**layout)
        estimate = estimator.predict(
            model=ModelConfig(**model),
            parallelism=parallelism,
            cluster=None if gpus_per_node is None else Cluster(gpus_per_node=gpus_per_node),
            bucket_entries=bucket_entries,
            timeline=timeline,
            interval=interval,
        )
    except KernelcastError as error:
        problem = str(error)
    event(problem[:25] or "estimated")
    if problem:
        assert len(problem.splitlines()) == 1
        return
    # A transfer keeps no stage from computing, so it is not part of how busy a stage is.
    times = estimate.durations
    chunks_us = (times.forward_us + times.backward_us + times.weight_us)[0]
    busiest_us = max(chunks_us[stage :: parallelism.pp].sum() for stage in range(parallelism.pp))
    assert estimate.step_time_s * 1e6 >= parallelism.micro_batches * busiest_us * (1 - 1e-9)
    assert sum(estimate.layer_counts) == model["layers"]
    assert 0 <= estimate.bubble_share < 1
    if estimate.interval_s is not None:
        low_s, high_s = estimate.interval_s
        assert 0 < low_s <= estimate.step_time_s <= high_s
    assert all(stage.total_bytes > 0 for stage in estimate.memory.stages)
    json.dumps(estimate.to_dict(), allow_nan=False)


@pytest.fixture
def estimator(make_bundle: Make) -> Estimator:
    """An estimator with every operator."""
    return Estimator.load(make_bundle())
