"""Raw parameters into workload vectors: by hand, and as laws over the whole operator table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime.operators import OPERATORS
from kernelcast.store.importers.problems import Malformed
from kernelcast.store.importers.raw_parameters import SYMBOLS, needed_symbols, workload_vector

GPT = {"b": 4, "l": 2048, "d": 6144, "h": 64, "mp": 4, "v_raw": 50257}
LAYOUT = {"nodes": 2, "gpus_per_node": 4}


@pytest.mark.parametrize(
    ("name", "parameters", "expected"),
    [
        ("embedding", GPT, (8192, 12672, 6144)),
        ("layer_norm", GPT, (4, 2048, 6144)),
        ("qkv_linear", GPT, (8192, 6144, 4608)),
        ("qkv_linear", GPT | {"h_kv": 8}, (8192, 6144, 1920)),
        ("rope", GPT, (4, 2048, 16, 96)),
        ("attention_scores", GPT, (64, 2048, 96, 2048)),
        ("fused_causal_softmax", GPT, (64, 2048, 2048)),
        ("attention_values", GPT, (64, 2048, 2048, 96)),
        ("attention_output_linear", GPT, (8192, 1536, 6144)),
        ("mlp_up_linear", GPT, (8192, 6144, 6144)),
        ("mlp_gate_up_linear", GPT | {"f": 16384}, (8192, 6144, 8192)),
        ("cross_entropy", GPT, (4, 2048, 12672)),
        ("cross_entropy", {"b": 4, "l": 2048, "v": 50304}, (4, 2048, 50304)),
        ("mp_all_reduce", GPT | LAYOUT, (50331648, 2, 4)),
        ("pp_p2p", GPT | LAYOUT, (12582912, 2, 4)),
        ("dp_all_gather", {"parameters": 1001, "dp": 8} | LAYOUT, (126, 2, 4)),
        # Encoder of Table III: 4d + 8d(d+1)/mp + d(4d+1)/mp = 113,283,072; v·d/mp = 77,856,768; 2d = 12,288.
        ("optimizer_middle_stage", {"mp": 4, "d": 6144, "encoders": 12}, (1359415296, 12)),
        ("optimizer_first_stage", {"mp": 4, "d": 6144, "encoders": 11, "v_raw": 50257}, (1323987456, 11)),
        ("optimizer_last_stage", {"mp": 4, "d": 6144, "encoders": 9, "v_raw": 50257}, (1097430528, 9)),
        ("optimizer_first_stage", {"parameters": 77, "encoders": 2}, (77, 2)),
    ],
)
def test_by_hand(name: str, parameters: dict[str, int], expected: tuple[int, ...]) -> None:
    assert workload_vector(OPERATORS[name], parameters) == expected


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("rope", {"b": 1, "l": 8}, "rope needs d, h (or its workload vector: b, l, heads, head_size)"),
        ("rope", {"b": 1, "l": 8, "d": 64, "h": 6}, "d=64 is not divisible by h=6"),
        ("rope", {"b": 1, "l": 8, "d": 72, "h": 6, "mp": 4}, "h=6 is not divisible by mp=4"),
        ("gelu", {"b": 1, "l": 8, "d": 8, "f": 9, "mp": 2}, "f=9 is not divisible by mp=2"),
        ("logits_linear", {"b": 1, "l": 8, "d": 8, "v": 9, "mp": 2}, "v=9 is not divisible by mp=2"),
        ("optimizer_first_stage", {"d": 64, "encoders": 2}, "optimizer_first_stage needs parameters"),
        ("optimizer_middle_stage", {"d": 64, "encoders": 10**6}, "encoders is 1000000"),
        ("dp_all_reduce", {"parameters": 7}, "dp_all_reduce needs nodes, gpus_per_node"),
    ],
)
def test_what_does_not_fit(name: str, parameters: dict[str, int], message: str) -> None:
    with pytest.raises(Malformed) as caught:
        workload_vector(OPERATORS[name], parameters)
    assert message in str(caught.value)


def test_every_operator_says_what_it_needs() -> None:
    for name in OPERATORS:
        assert needed_symbols(name)
        assert needed_symbols(name) <= set(SYMBOLS)
    assert needed_symbols("attention_output_linear") == {"b", "l", "d", "mp"}
    assert needed_symbols("qkv_linear") == {"b", "l", "d", "h", "h_kv", "mp"}


@given(
    mp=st.sampled_from([1, 2, 4, 8]),
    heads=st.integers(1, 8),
    head_size=st.integers(1, 128),
    b=st.integers(1, 16),
    length=st.integers(1, 4096),
)
def test_tensor_parallelism_divides_and_loses_nothing(
    mp: int, heads: int, head_size: int, b: int, length: int
) -> None:
    raw = {"b": b, "l": length, "h": 8 * heads, "d": 8 * heads * head_size, "v_raw": 50257}
    for name in ("qkv_linear", "mlp_up_linear", "rope", "softmax", "attention_scores", "gelu"):
        whole = workload_vector(OPERATORS[name], raw | {"mp": 1})
        part = workload_vector(OPERATORS[name], raw | {"mp": mp})
        assert [a // b for a, b in zip(whole, part, strict=True) if a != b] == ([] if mp == 1 else [mp])
