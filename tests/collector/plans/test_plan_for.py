"""Plans for models by name: what they measure is what training these models calls."""

from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.collector.plans.plan import compute_points
from kernelcast.collector.plans.plan_file import load_plan
from kernelcast.collector.plans.plan_for import plan_for, plan_text
from kernelcast.runtime import Cluster, Parallelism, UsageError, load_model
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.step.decomposition import Decomposition

MIXTURE = """
hidden_size = 96
sequence_length = 64
attention_heads = 6
head_size = 32
kv_heads = 2
layers = 3
vocabulary_size = 500
mlp_size = 200
experts = 8
experts_per_token = 2
expert_size = 40
dense_layers = 1
norm = "rms_norm"
activation = "swiglu"
"""


@pytest.fixture
def mixture(tmp_path: Path) -> str:
    path = tmp_path / "mixture.toml"
    path.write_text(MIXTURE)
    return str(path)


def test_every_compute_call_of_a_step_is_measured(mixture: str) -> None:
    plan = replace(plan_for([mixture], "tp2,cp2,ep4,pp3"), shapes_per_operator=0)
    planned = {(point.operator, point.vector) for point in compute_points(plan)}
    layouts = [
        {},
        {"tp": 2, "sequence_parallel": True},
        {"cp": 2},
        {"cp": 2, "context_exchange": "all_gather"},
        {"dp": 4, "ep": 4},
        {"pp": 3},
    ]
    for options in layouts:
        layout = Parallelism(
            **{"pp": 1, "tp": 1, "dp": 1, "micro_batch": 2, "micro_batches": 3, "zero": 0} | options  # type: ignore[arg-type]
        )
        step = Decomposition(
            model=load_model(mixture),
            parallelism=layout,
            cluster=Cluster(gpus_per_node=8),
            bucket_entries=10**9,
        )
        called = {(one.operator, one.shape) for stage in range(layout.pp) for _, one in step.calls(stage)}
        called = {(name, shape) for name, shape in called if not OPERATORS[name].is_collective}
        assert len(called) > 15
        assert called <= planned, (options, called - planned)


def test_as_many_workloads_as_a_regressor_needs_of_one_model_and_one_layout(mixture: str) -> None:
    points = compute_points(plan_for([mixture]))
    for name in {point.operator for point in points}:
        assert len({point.vector for point in points if point.operator == name}) >= 8, name


def test_the_plan_as_a_file_means_the_same_points(mixture: str, tmp_path: Path) -> None:
    names = [mixture, "llama-3-8b"]
    plan = plan_for(names, "tp2, ep2", sequence_length=64)
    path = tmp_path / "ours.toml"
    path.write_text(plan_text(plan, names))
    read = load_plan(str(path))
    # The file does not say that models train on shorter sequences than their own; its ranges do.
    assert read.ranges == plan.ranges
    assert compute_points(read, ("gemm", "rope")) == compute_points(plan, ("gemm", "rope"))


@pytest.mark.parametrize("layouts", ["tp0", "tp", "dp4", "1x2", "tp2;tp4"])
def test_what_is_no_degree(mixture: str, layouts: str) -> None:
    with pytest.raises(
        UsageError, match=f"--layouts: '{layouts}' is no degree, expected some such as tp4, cp2"
    ):
        plan_for([mixture], layouts)


def test_models_and_ranges_of_sizes_exclude_each_other(mixture: str, tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    text = plan_text(plan_for([mixture]), [mixture])
    path.write_text(text.replace("[ranges]", "[ranges]\nmlp_ratio = [4]"))
    refusal = r"ranges\.mlp_ratio is given together with models, whose own sizes are measured"
    with pytest.raises(UsageError, match=refusal):
        load_plan(str(path))
    path.write_text(text.replace("models = ", "# "))
    with pytest.raises(
        UsageError, match=r"ranges\.hidden_size is missing, expected sizes, or models by name"
    ):
        load_plan(str(path))
    path.write_text(text.replace("models = [", "models = [7, "))
    with pytest.raises(UsageError, match=r"models is .* expected a list of models' names or files"):
        load_plan(str(path))
