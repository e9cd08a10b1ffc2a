"""Nodes and GPUs from Slurm's options, its plugins' values and a job's environment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import Parallelism, UsageError
from kernelcast.runtime.frameworks.slurm import OPTIONS
from kernelcast.walltime import Allocation, slurm_allocation, slurm_environment

Options = dict[str, str]


@pytest.mark.parametrize(
    ("options", "nodes", "gpus_per_node", "gpus"),
    [
        ({}, None, None, None),
        ({"nodes": "2"}, 2, None, None),
        ({"nodes": "2", "gpus-per-node": "4"}, 2, 4, 8),
        ({"nodes": "2-2", "gpus": "a100:8"}, 2, 4, 8),
        ({"nodes": "2-4", "gpus": "8"}, None, None, 8),
        ({"nodes": "2-4", "gpus-per-node": "4"}, None, 4, None),
        ({"nodes": "3", "gpus": "8"}, 3, None, 8),
        ({"gpus": "8"}, None, None, 8),
        ({"gpus-per-node": "4"}, 1, 4, 4),
        ({"gres": "gpu"}, 1, 1, 1),
        ({"gres": "lustre:1,gres:gpu:a100:2,gpu:v100:1"}, 1, 3, 3),
        ({"gres": "gres/gpu=2"}, 1, 2, 2),
        ({"gres": "lustre:4"}, None, None, None),
        ({"gpus": "gres:gpu:8"}, None, None, 8),
        ({"gpus": "gres:fpga:8"}, None, None, None),
        ({"gpus-per-node": "a100"}, 1, 1, 1),
        ({"gpus-per-node": "a100:2,v100:2"}, 1, 4, 4),
        ({"gpus-per-task": "2", "ntasks": "4"}, None, None, 8),
        ({"gpus-per-task": "2"}, None, None, None),
        ({"ntasks": "8", "ntasks-per-node": "4", "gpus-per-node": "4"}, 2, 4, 8),
        ({"ntasks": "8", "gpus-per-node": "4"}, None, 4, None),
        # What cli_filter says where the user said nothing.
        ({"nodes": "1-0", "ntasks": "1", "ntasks-per-node": "-2", "gpus-per-node": "4"}, 1, 4, 4),
        ({"nodes": "two", "gpus": "many:of:them", "gres": "gpu:a:b:c"}, None, None, None),
        ({"nodes": "0", "gpus": "99999999999999999999"}, None, None, None),
    ],
)
def test_allocations(
    options: Options, nodes: int | None, gpus_per_node: int | None, gpus: int | None
) -> None:
    found = slurm_allocation(options)
    assert (found.nodes, found.gpus_per_node, found.gpus) == (nodes, gpus_per_node, gpus)


def test_the_environment_of_a_job() -> None:
    environment = {"SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "4", "SLURM_NTASKS": "8", "SLURM_GPUS": ""}
    assert slurm_environment(environment) == {}
    options = slurm_environment({"SLURM_JOB_ID": "7", **environment})
    assert options == {"nodes": "2", "ntasks": "8", "gpus-per-node": "4"}
    assert slurm_allocation(options).gpus == 8


@given(st.dictionaries(st.sampled_from(OPTIONS), st.text("0123456789-,:=gpures/ax ", max_size=12)))
def test_any_text_is_understood_or_left_alone(options: Options) -> None:
    found = slurm_allocation(options)
    for number in (found.nodes, found.gpus_per_node, found.gpus):
        assert number is None or number > 0
    if (
        None not in (found.nodes, found.gpus_per_node)
        and "gpus" not in options
        and "gpus-per-task" not in options
    ):
        assert found.gpus == (found.nodes or 0) * (found.gpus_per_node or 0)


def test_the_layout_must_fit() -> None:
    layout = Parallelism(pp=2, tp=2, dp=2, micro_batch=1, micro_batches=1)
    Allocation().check(layout)
    Allocation(nodes=3).check(layout)
    slurm_allocation({"nodes": "2", "gpus-per-node": "4"}).check(layout)
    with pytest.raises(UsageError) as raised:
        slurm_allocation({"nodes": "1-0", "gres": "gpu:4"}).check(layout)
    assert str(raised.value) == (
        "layout pp 2 × tp 2 × dp 2 has 8 GPU(s), expected 4, as the job asks for (gres gpu:4)"
    )
