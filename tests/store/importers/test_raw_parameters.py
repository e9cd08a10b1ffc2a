"""Raw parameters into workload vectors: by hand, and as laws over the whole operator table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime.operators import OPERATORS
from kernelcast.store.importers.raw_parameters import SYMBOLS, needed_symbols, workload_vector
from kernelcast.store.importers.tables import Malformed

GPT = {"b": 4, "l": 2048, "d": 6144, "h": 64, "tp": 4, "v_raw": 50257}
LAYOUT = {"nodes": 2, "gpus_per_node": 4}
# Roles without raw parameters: they are imported by their workload vectors alone.
GIVEN_ALONE = {
    *((name, "") for name in ("copy", "router", "permute", "unpermute", "attention_block")),
    *(
        ("gemm", role)
        for role in ("query_down", "query_up", "kv_down", "kv_up", "router", "next_token", "recurrent_in")
    ),
    *(
        ("gemm", role)
        for role in ("shared_gate_up", "shared_down", "adapter_down", "adapter_up", "recurrent_out")
    ),
    *(("gemm", role) for role in ("latent_down", "latent_up")),
    *(("grouped_gemm", f"experts_{role}") for role in ("gate_up", "up", "down")),
    *(("all_gather", role) for role in ("expert_data", "expert_tensor", "context")),
    *(("reduce_scatter", role) for role in ("expert_data", "expert_tensor", "context")),
    *(("all_to_all", role) for role in ("expert", "context")),
    ("copy", "padding"),
    ("all_reduce", "expert_data"),
    ("point_to_point", "context"),
}
ROLES = [(name, role) for name, row in OPERATORS.items() for role in row.roles]


@pytest.mark.parametrize(
    ("name", "role", "parameters", "expected"),
    [
        ("embedding", "", GPT, (8192, 12672, 6144)),
        ("layer_norm", "", GPT, (4, 2048, 6144)),
        ("rms_norm", "", GPT, (4, 2048, 6144)),
        ("gemm", "qkv", GPT, (8192, 6144, 4608)),
        ("gemm", "qkv", GPT | {"h_kv": 8}, (8192, 6144, 1920)),
        ("rope", "", GPT, (4, 2048, 16, 16, 96)),
        ("flash_attention", "", GPT | {"h_kv": 8}, (4, 2048, 16, 2, 96)),
        ("batched_gemm", "attention_scores", GPT, (64, 2048, 96, 2048)),
        ("fused_causal_softmax", "", GPT, (64, 2048, 2048)),
        ("batched_gemm", "attention_values", GPT, (64, 2048, 2048, 96)),
        ("gemm", "attention_output", GPT, (8192, 1536, 6144)),
        ("gemm", "attention_output", {"b": 4, "l": 2048, "d": 6144, "tp": 4}, (8192, 1536, 6144)),
        ("gemm", "mlp_up", GPT, (8192, 6144, 6144)),
        ("gemm", "mlp_gate_up", GPT | {"f": 16384}, (8192, 6144, 8192)),
        ("cross_entropy", "", GPT, (4, 2048, 12672)),
        ("cross_entropy", "", {"b": 4, "l": 2048, "v": 50304}, (4, 2048, 50304)),
        ("bias_add", "", GPT, (8192, 6144)),
        ("all_reduce", "tensor", GPT | LAYOUT, (50331648, 2, 4)),
        ("all_gather", "tensor", GPT | LAYOUT, (12582912, 2, 4)),
        ("point_to_point", "pipeline", GPT | LAYOUT, (12582912, 2, 4)),
        ("reduce_scatter", "data", {"parameters": 1001, "dp": 8} | LAYOUT, (1001, 2, 4)),
        ("all_gather", "data", {"parameters": 1001, "dp": 8} | LAYOUT, (126, 2, 4)),
        ("gradient_clip", "", {"parameters": 77}, (77,)),
        # A layer of Table III: 4d + 8d(d+1)/tp + d(4d+1)/tp = 113,283,072; v·d/tp = 77,856,768; 2d = 12,288.
        ("adam", "middle_stage", {"tp": 4, "d": 6144, "layers": 12}, (1359415296, 12)),
        ("adam", "first_stage", {"tp": 4, "d": 6144, "layers": 11, "v_raw": 50257}, (1323987456, 11)),
        ("adam", "last_stage", {"tp": 4, "d": 6144, "layers": 9, "v_raw": 50257}, (1097430528, 9)),
        ("adam", "first_stage", {"parameters": 77, "layers": 2}, (77, 2)),
    ],
)
def test_by_hand(name: str, role: str, parameters: dict[str, int], expected: tuple[int, ...]) -> None:
    assert workload_vector(OPERATORS[name], role, parameters) == expected


@pytest.mark.parametrize(
    ("name", "role", "parameters", "message"),
    [
        (
            "rope",
            "",
            {"b": 1, "l": 8},
            "rope needs d, h (or its workload vector: b, l, heads, kv_heads, head_",
        ),
        ("rope", "", {"b": 1, "l": 8, "d": 64, "h": 6}, "d=64 is not divisible by h=6"),
        ("rope", "", {"b": 1, "l": 8, "d": 72, "h": 6, "tp": 4}, "h=6 is not divisible by tp=4"),
        ("gelu", "", {"b": 1, "l": 8, "d": 8, "f": 9, "tp": 2}, "f=9 is not divisible by tp=2"),
        ("gemm", "logits", {"b": 1, "l": 8, "d": 8, "v": 9, "tp": 2}, "v=9 is not divisible by tp=2"),
        ("gemm", "", GPT, "gemm needs its workload vector (m, k, n), or a role of qkv, attention_output"),
        ("gemm", "qkv", GPT | {"d": 2**40}, "gemm (qkv): hidden_size is 1099511627776, expected"),
        ("adam", "first_stage", {"d": 64, "layers": 2}, "adam (first_stage) needs parameters"),
        ("adam", "middle_stage", {"d": 64, "layers": 10**6}, "layers is 1000000"),
        ("all_reduce", "data", {"parameters": 7}, "all_reduce (data) needs nodes, gpus_per_node"),
        ("all_gather", "data", {"parameters": 7, "dp": 1} | LAYOUT, "no step calls it at these parameters"),
        (
            "all_to_all",
            "expert",
            GPT | LAYOUT,
            "all_to_all needs its workload vector (entries, nodes, gpus_per_",
        ),
    ],
)
def test_what_does_not_fit(name: str, role: str, parameters: dict[str, int], message: str) -> None:
    with pytest.raises(Malformed) as caught:
        workload_vector(OPERATORS[name], role, parameters)
    assert message in str(caught.value)


@pytest.mark.parametrize(("name", "role"), ROLES)
def test_every_operator_says_what_it_needs(name: str, role: str) -> None:
    is_given_alone = OPERATORS[name].is_on_request or (name, role) in GIVEN_ALONE
    assert bool(needed_symbols(name, role)) is not is_given_alone
    assert needed_symbols(name, role) <= set(SYMBOLS)


def test_what_two_roles_need() -> None:
    assert needed_symbols("gemm", "attention_output") == {"b", "l", "d", "tp"}
    assert needed_symbols("gemm", "qkv") == {"b", "l", "d", "h", "h_kv", "tp"}


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    heads=st.integers(1, 8),
    head_size=st.integers(1, 128),
    b=st.integers(1, 16),
    length=st.integers(1, 4096),
)
def test_tensor_parallelism_divides_and_loses_nothing(
    tp: int, heads: int, head_size: int, b: int, length: int
) -> None:
    raw = {"b": b, "l": length, "h": 8 * heads, "d": 8 * heads * head_size, "v_raw": 50257}
    for name, role, divided in (
        ("gemm", "qkv", 1),
        ("gemm", "mlp_up", 1),
        ("rope", "", 2),
        ("softmax", "", 1),
        ("batched_gemm", "attention_scores", 1),
        ("gelu", "", 1),
    ):
        whole = workload_vector(OPERATORS[name], role, raw | {"tp": 1})
        part = workload_vector(OPERATORS[name], role, raw | {"tp": tp})
        expected = [] if tp == 1 else [tp] * divided
        assert [a // b for a, b in zip(whole, part, strict=True) if a != b] == expected
