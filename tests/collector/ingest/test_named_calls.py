"""Operators that libraries, compilers and programs write in their own ways: one forward call, or several."""

from typing import Any

import pytest

from kernelcast.collector.ingest.attribute_kernels import extract
from kernelcast.collector.ingest.named_calls import NOT_CAUSAL, named_call
from kernelcast.collector.ingest.recognise import LinearRoles
from kernelcast.collector.ingest.recognised_calls import OTHER_SHAPE, RecognisedCall


def points(make_trace: Any, step: Any) -> dict[str, tuple[tuple[int, ...], str, float]]:
    """Workload, variant and µs of every operator that is not of the step's own."""
    found = extract(make_trace(step.events), gpus_per_node=8)
    return {
        point.operator: (point.vector, point.variant, sum(one.end_us - one.start_us for one in occurrences))
        for (point, _), occurrences in found.points.items()
    }


def reasons(make_trace: Any, step: Any) -> dict[str, str]:
    found = extract(make_trace(step.events), gpus_per_node=8)
    return {key.name: key.reason for key in found.left}


@pytest.fixture
def empty(step: Any) -> Any:
    """A step without calls."""
    return type(step)()


@pytest.mark.parametrize(
    ("name", "dims", "operator", "vector", "variant"),
    [
        ("LigerRMSNormFunction", [[2, 16, 32], [32]], "rms_norm", (2, 16, 32), ""),
        ("FusedLayerNormAffineFunction", [[2, 16, 32], [32], [32]], "layer_norm", (2, 16, 32), ""),
        ("FastLayerNormFN", [[32, 32], [32], [32]], "layer_norm", (1, 32, 32), ""),
        ("LigerSiLUMulFunction", [[2, 16, 64], [2, 16, 64]], "swiglu", (2, 16, 64), ""),
        ("SwiGLUFunction", [[2, 16, 128]], "swiglu", (2, 16, 64), ""),
        ("GeLUFunction", [[16, 2, 64], [64]], "gelu", (16, 2, 64), ""),
        ("LigerGELUMulFunction", [[2, 16, 64], [2, 16, 64]], "swiglu", (2, 16, 64), ""),
        ("LigerRopeFunction", [[2, 4, 16, 8], [2, 2, 16, 8]], "rope", (2, 16, 4, 2, 8), ""),
        ("ScaledUpperTriangMaskedSoftmax", [[8, 16, 16]], "fused_causal_softmax", (8, 16, 16), ""),
        ("aten::_softmax", [[8, 16, 16]], "softmax", (1, 8, 16, 16), ""),
        ("_Linear", [[96, 32], [2, 16, 32]], "gemm", (32, 32, 96), "transformer-engine"),
        ("aten::_scaled_mm", [[32, 64], [64, 96]], "gemm", (32, 64, 96), ""),
        ("aten::_addmm_activation", [[96], [32, 64], [64, 96]], "gemm", (32, 64, 96), ""),
        ("LigerCrossEntropyFunction", [[32, 500], [32]], "cross_entropy", (1, 32, 500), ""),
        ("triton_poi_fused_gelu_3", [[2, 16, 64], [2, 16, 64], []], "gelu", (2, 16, 64), "inductor"),
        ("triton_poi_fused_mul_silu_11", [[2, 16, 64], [2, 16, 64]], "swiglu", (2, 16, 64), "inductor"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", [[2, 16, 32], [32]], "rms_norm", (2, 16, 32),
         "inductor"),
        ("triton_per_fused_native_layer_norm_view_2", [[2, 16, 32], [32]], "layer_norm", (2, 16, 32), "inductor"),
        ("triton_per_fused__softmax_1", [[2, 4, 16, 16]], "softmax", (2, 4, 16, 16), "inductor"),
    ],
)  # fmt: skip
def test_a_call_by_its_name(
    make_trace: Any, empty: Any, name: str, dims: list[Any], operator: str, vector: Any, variant: str
) -> None:
    empty.forward(name, dims, ("kernel", 5.0))
    assert points(make_trace, empty) == {operator: (vector, variant, 5.0)}


FIRST = ((2, 4, 16, 8), (2, 2, 16, 8), (2, 2, 16, 8))  # heads before tokens
LAST = ((2, 16, 4, 8), (2, 16, 2, 8), (2, 16, 2, 8))
PACKED = ((2, 16, 3, 4, 8),)


@pytest.mark.parametrize(
    ("name", "dims", "causal_at", "variant"),
    [
        ("aten::_scaled_dot_product_flash_attention", FIRST, 4, ""),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", FIRST, 4, ""),
        ("aten::_scaled_dot_product_cudnn_attention", FIRST, 6, "cudnn"),
        ("aten::_scaled_dot_product_efficient_attention", FIRST, 6, "memory-efficient"),
        ("flash_attn::_flash_attn_forward", LAST, 5, "flash-attn"),
        ("FlashAttnFunc", LAST, 5, "flash-attn"),
        ("FlashAttnQKVPackedFunc", PACKED, 3, "flash-attn"),
        ("aten::_flash_attention_forward", LAST, 8, ""),
    ],
)
def test_fused_attention_by_its_name(
    name: str, dims: tuple[tuple[int, ...], ...], causal_at: int, variant: str
) -> None:
    causal = [""] * causal_at + ["True"]
    kv_heads = 4 if dims is PACKED else 2
    expected = RecognisedCall("flash_attention", (2, 16, 4, kv_heads, 8), variant=variant)
    assert named_call(name, dims, causal) == named_call(name, (*dims, (), ()), [*causal, ""]) == expected
    for concrete in ([], ["True"] * causal_at, ["True"] * causal_at + ["False"]):
        assert named_call(name, dims, concrete) == NOT_CAUSAL
    odd = [dims[:0], ((2, 4, 8), *dims[1:]), ((2, 16, 2, 4, 8),)]
    if dims is not PACKED:
        few, other = (2, 3, 3, 8), (1, *dims[1][1:])
        odd += [dims[:1], (dims[0], dims[1][1:]), (dims[0], few, few), (dims[0], other, other)]
    if dims is FIRST:
        odd.append((*dims[:2], (2, 2, 16, 9)))
    for shapes in odd:
        assert named_call(name, shapes, causal) == OTHER_SHAPE, shapes


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("_LayerNormLinear", "a norm and products in one call (TransformerEngine): the table has them apart"),
        ("FusedRoPEFunc", "rotary embedding of queries or keys alone: the table has both together"),
        ("triton_red_fused_add_gelu_native_layer_norm_4",
         "a compiled kernel of several operators: add_gelu_native_layer_norm"),
        ("LigerRopeFunction", "shapes that the operator here does not have"),
    ],
)  # fmt: skip
def test_what_is_named_and_is_no_operator(make_trace: Any, empty: Any, name: str, reason: str) -> None:
    empty.forward(name, [[2, 16, 32]], ("kernel", 5.0))
    assert reasons(make_trace, empty) == {"kernel": reason}


def test_bias_and_residual_adds(make_trace: Any, empty: Any) -> None:
    empty.forward("aten::layer_norm", [[2, 16, 32], [], [32], [32], []], ("norm", 1.0))
    empty.forward("aten::mm", [[32, 32], [32, 96]], ("product", 1.0))
    empty.forward("aten::add", [[2, 16, 96], [96], []], ("bias", 2.0))
    empty.forward("aten::add", [[2, 16, 32], [2, 16, 32], []], ("residual", 3.0))
    empty.forward("aten::add", [[2, 16, 32], [16, 32], []], ("positions", 4.0))
    found = points(make_trace, empty)
    assert found["bias_add"] == ((32, 96), "", 2.0)
    assert found["residual_add"] == ((2, 16, 32), "", 3.0)
    assert reasons(make_trace, empty) == {"positions": "no operator for it"}


def write(step: Any, *calls: tuple[str, list[Any]]) -> None:
    for name, dims in calls:
        step.forward(name, dims, ("kernel", 1.0))


ROTATED = [("aten::slice", [[2, 4, 16, 8]]), ("aten::neg", [[2, 4, 16, 4]]), ("aten::cat", [[]]),
           ("aten::mul", [[2, 4, 16, 8], [16, 8]]), ("aten::add", [[2, 4, 16, 8], [2, 4, 16, 8]])]  # fmt: skip


def test_a_norm_written_as_calls(make_trace: Any, empty: Any) -> None:
    x, row = [2, 16, 32], [2, 16, 1]
    write(empty, ("aten::pow", [x, []]), ("aten::mean", [x]), ("aten::add", [row, []]), ("aten::rsqrt", [row]),
          ("aten::mul", [x, row]), ("aten::to", [x]), ("aten::mul", [[32], x]), ("aten::add", [x, x, []]))  # fmt: skip
    found = points(make_trace, empty)
    # Seven calls with a gap of 1 µs between them; the width of the norm tells what the addition is.
    assert found == {
        "rms_norm": ((2, 16, 32), "unfused", 13.0),
        "residual_add": ((2, 16, 32), "", 1.0),
    }


def test_rotary_embedding_written_as_calls(make_trace: Any, empty: Any) -> None:
    write(empty, ("aten::mul", [[2, 4, 16, 8], [16, 8]]), *ROTATED)
    write(empty, ("aten::mul", [[2, 2, 16, 8], [16, 8]]), *ROTATED)
    assert points(make_trace, empty) == {"rope": ((2, 16, 4, 2, 8), "unfused", 23.0)}


def test_a_gate_around_a_product(make_trace: Any, empty: Any) -> None:
    x = [2, 16, 64]
    write(empty, ("aten::silu", [x]), ("aten::mm", [[32, 32], [32, 64]]), ("aten::mul", [x, x]))
    found = points(make_trace, empty)
    assert found["swiglu"][:2] == ((2, 16, 64), "unfused")
    assert found["gemm"] == ((32, 32, 64), "", 1.0)


@pytest.mark.parametrize(
    "names", [("aten::silu", "aten::add", "aten::mul"), ("aten::silu",), ("aten::mul", "aten::neg")]
)
def test_what_only_begins_like_a_sequence(make_trace: Any, empty: Any, names: tuple[str, ...]) -> None:
    write(empty, *((name, [[2, 16, 64], [2, 16, 64]]) for name in names))
    assert points(make_trace, empty) == {}


def test_an_adapter_of_low_rank_is_no_mlp() -> None:
    d, products = 1024, [(1024, 3072), (1024, 1024), (1024, 4096), (4096, 1024), (1024, 16), (16, 1024)]
    roles = LinearRoles.of(products, {d}, set()).by_width
    assert roles == {
        (1024, 3072): "qkv",
        (1024, 1024): "attention_output",
        (1024, 4096): "mlp_up",
        (4096, 1024): "mlp_down",
    }


def test_heads_that_are_wider_than_the_model() -> None:
    products = [(1024, 3072), (2048, 1024), (1024, 8192), (4096, 1024)]
    assert LinearRoles.of(products, {1024}, set()).by_width == {
        (1024, 8192): "mlp_gate_up",
        (4096, 1024): "mlp_down",
        (1024, 3072): "qkv",
        (2048, 1024): "attention_output",
    }


def test_collectives_of_annotations(make_trace: Any, empty: Any) -> None:
    """Traces before 2024: the call of c10d has the shapes, NCCL's annotation inside of it what is sent."""
    start = empty.host_us
    empty.call(
        "c10d::_allgather_base_", dims=[[64], [8], []], kernels=(("ncclKernel_AllGather_RING_LL_Sum", 9.0),)
    )
    empty.host(
        "user_annotation",
        "nccl:_all_gather_base",
        start + 1,
        3,
        1,
        {"Input Dims": [[8]], "Input type": ["float"]},
    )
    found = extract(make_trace(sorted(empty.events, key=lambda event: event["ts"])), gpus_per_node=8)
    [placed] = found.pieces
    said = placed.described
    assert said is not None
    assert (said.collective, said.elements_in, said.elements_out, said.group_size) == (
        "_all_gather_base",
        8,
        64,
        8,
    )
