"""Layers with experts in traces: torch's grouped products, TransformerEngine's functions, and DeepEP's kernels."""

from collections.abc import Callable
from typing import Any

import pytest

from kernelcast.collector.ingest.attribute_kernels import Extracted, extract
from kernelcast.collector.ingest.collectives import collective
from kernelcast.collector.ingest.recognised_calls import RecognisedCall
from kernelcast.collector.traces.arguments import Arguments
from kernelcast.collector.traces.kineto import Trace

TraceMaker = Callable[..., Trace]
TOKENS, EXPERTS, COPIES, D, WIDTH = 4, 8, 2, 8, 5
ROWS = TOKENS * COPIES


def found(extracted: Extracted) -> dict[tuple[str, str], tuple[tuple[int, ...], float]]:
    return {
        (f"{point.operator}/{point.role}".rstrip("/"), direction.value): (
            point.vector,
            occurrences[-1].end_us - occurrences[-1].start_us,
        )
        for (point, direction), occurrences in extracted.points.items()
    }


def reasons(extracted: Extracted) -> dict[str, str]:
    return {left.name: left.reason for left in extracted.left}


def test_torchs_grouped_products(make_trace: TraceMaker, step: Any) -> None:
    up = step.forward(
        "aten::_grouped_mm", [[ROWS, D], [EXPERTS, D, 2 * WIDTH], [EXPERTS]], ("grouped_up", 9.0)
    )
    step.forward("aten::_grouped_mm", [[ROWS, WIDTH], [EXPERTS, WIDTH, D], [EXPERTS]], ("grouped_down", 7.0))
    # The gradient of the input is a product of every group's weight, that of the weights one of two matrices.
    for dims, kernel, time_us in (
        ([[ROWS, 2 * WIDTH], [EXPERTS, 2 * WIDTH, D], [EXPERTS]], "grouped_dx", 8.0),
        ([[D, ROWS], [ROWS, 2 * WIDTH], [EXPERTS]], "grouped_dw", 6.0),
    ):
        start = step.host_us
        step.call("aten::_grouped_mm", dims=dims, kernels=((kernel, time_us),), thread=2)
        step.host(
            "cpu_op", "autograd::engine::evaluate_function: GroupedMmBackward0", start - 1, 23, 2,
            {"Sequence number": up, "Fwd thread id": 1, "External id": 90_000 + step.external},
        )  # fmt: skip
    points = found(extract(make_trace(step.events), gpus_per_node=8))
    each = (EXPERTS, ROWS // EXPERTS)
    assert points["grouped_gemm/experts_gate_up", "forward"] == ((*each, D, 2 * WIDTH), 9.0)
    assert points["grouped_gemm/experts_down", "forward"] == ((*each, WIDTH, D), 7.0)
    assert points["grouped_gemm/experts_gate_up", "input_gradient"] == ((*each, D, 2 * WIDTH), 8.0)
    assert points["grouped_gemm/experts_gate_up", "weight_gradient"] == ((*each, D, 2 * WIDTH), 6.0)


def test_transformer_engines_functions(make_trace: TraceMaker, step: Any) -> None:
    step.call(
        "aten::topk", dims=[[TOKENS, EXPERTS], [], [], [], []], kernels=(("topk", 2.0),),
        **{"Concrete Inputs": ["", str(COPIES), "-1", "True", "True"]},
    )  # fmt: skip
    step.forward("FusedTopkScoreFunction", [[TOKENS, EXPERTS]], ("fused_topk", 3.0))
    permuted = step.forward("_moe_permute_mask_map", [[TOKENS, D], [TOKENS, EXPERTS]], ("permute", 4.0))
    step.forward("_moe_permute_index_map", [[TOKENS, D], [TOKENS, COPIES]], ("permute_index", 5.0))
    step.forward("_moe_chunk_sort", [[ROWS, D], [EXPERTS], [EXPERTS]], ("sort_chunks", 2.5))
    weights = [[2 * WIDTH, D]] * EXPERTS
    grouped = step.forward("_GroupedLinear", [[ROWS, D], *weights, *[[0]] * EXPERTS], ("grouped_te", 9.0))
    step.forward("_GroupedLinear", [[ROWS, WIDTH], *[[D, WIDTH]] * EXPERTS], ("grouped_down", 7.0))
    step.forward(
        "_moe_unpermute_mask_map", [[ROWS, D], [EXPERTS, TOKENS], [TOKENS, EXPERTS]], ("unpermute", 6.0)
    )
    step.backward("_moe_permute_mask_mapBackward", permuted, ("permute_bwd", 4.5))
    step.backward("_GroupedLinearBackward", grouped, ("grouped_bwd", 18.0))
    extracted = extract(make_trace(step.events), gpus_per_node=8)
    points, each = found(extracted), (EXPERTS, ROWS // EXPERTS)
    expected = {
        ("router", "forward"): ((TOKENS, EXPERTS), 3.0),
        ("permute", "backward"): ((TOKENS, COPIES, D), 4.5),
        ("grouped_gemm/experts_gate_up", "forward"): ((*each, D, 2 * WIDTH), 9.0),
        ("grouped_gemm/experts_down", "forward"): ((*each, WIDTH, D), 7.0),
        ("unpermute", "forward"): ((TOKENS, COPIES, D), 6.0),
    }
    assert points.items() >= expected.items()
    permutes = [point.vector for point, _ in extracted.points if point.operator == "permute"]
    assert set(permutes) == {(TOKENS, COPIES, D), (ROWS, 1, D)}
    assert (
        reasons(extracted).items()
        >= {
            "topk": "the choice of the largest entries: a part of a router",
            "grouped_bwd": "both gradients of a grouped product together, which the table has apart",
        }.items()
    )


@pytest.mark.parametrize(
    ("name", "dims", "reason"),
    [
        (
            "_moe_permute_mask_map",
            [[TOKENS, D], [TOKENS, 7]],
            "how many experts a token goes to was not recorded",
        ),
        ("_moe_unpermute_mask_map", [[ROWS, D], [9]], "how many experts a token goes to was not recorded"),
        (
            "_moe_unpermute_mask_map",
            [[9, D], [9], [4, 4]],
            "how many experts a token goes to was not recorded",
        ),
        ("_moe_permute_index_map", [[TOKENS, D], [3, 2]], "shapes that the operator here does not have"),
        ("_GroupedLinear", [[ROWS, D], [5, D], [6, D]], "shapes that the operator here does not have"),
        ("_GroupedLinear", [[ROWS, D]], "shapes that the operator here does not have"),
        (
            "aten::_grouped_mm",
            [[D, ROWS], [ROWS, D], [EXPERTS]],
            "shapes that the operator here does not have",
        ),
        ("aten::_grouped_mm", [[0, D], [EXPERTS, D, 4], []], "shapes that the operator here does not have"),
        ("FusedTopkScoreFunction", [[2, 3, 4]], "shapes that the operator here does not have"),
    ],
)
def test_what_is_none(make_trace: TraceMaker, step: Any, name: str, dims: list[Any], reason: str) -> None:
    step.forward(name, dims, ("made_up", 3.0))
    extracted = extract(make_trace(step.events), gpus_per_node=8)
    assert reasons(extracted)["made_up"] == reason


def test_deep_eps_kernels_are_said_to_be_what_they_are(make_trace: TraceMaker, step: Any) -> None:
    step.forward("FusedDispatch", [[TOKENS, D]], ("void deep_ep::intranode::dispatch<8, 768>(int4*)", 3.0))
    step.call("aten::mm", dims=[[2, 2], [2, 2]], kernels=(("deep_ep::internode::combine", 4.0),))
    left = reasons(extract(make_trace(step.events), gpus_per_node=8))
    of_deep_ep = [reason for name, reason in left.items() if "deep_ep" in name]
    assert len(of_deep_ep) == 2
    assert all(reason.startswith("DeepEP's dispatch or combine: ") for reason in of_deep_ep)


@pytest.mark.parametrize(
    ("kind", "description", "role"),
    [
        ("all_to_all", "EXPERT_MODEL_PARALLEL_GROUP", "expert"),
        ("all_to_all", "mesh_ep", "expert"),
        ("all_to_all", "CONTEXT_PARALLEL_GROUP", "context"),
        ("send", "mesh_cp", "context"),
        ("send", "PIPELINE_MODEL_PARALLEL_GROUP", "pipeline"),
        ("allreduce", "TENSOR_MODEL_PARALLEL_GROUP", "tensor"),
        ("allreduce", "DATA_PARALLEL_GROUP_WITH_CP", "data"),
        ("allreduce", "EXPERT_DATA_PARALLEL_GROUP", "expert_data"),
        ("_allgather_base", "EXPERT_TENSOR_PARALLEL_GROUP", "expert_tensor"),
        ("_allgather_base", "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", ""),
        ("_reduce_scatter_base", "mesh_dp_shard_mod_ep", "expert_data"),
        ("allreduce", "EXPERT_MODEL_PARALLEL_GROUP", ""),  # no such use in a step
        ("allreduce", "default_pg", ""),
        ("allreduce", None, ""),
        ("allreduce", 7, ""),
    ],
)
def test_roles_by_the_names_of_groups(kind: str, description: object, role: str) -> None:
    described = Arguments(
        collective=kind, elements_in=64, dtype="Half", group_size=2, group_ranks="[0, 1]", group_description=description
    )  # fmt: skip
    point = collective(described, gpus_per_node=8)
    assert isinstance(point, RecognisedCall)
    assert (point.role, point.vector) == (role, (64, 1, 2))
