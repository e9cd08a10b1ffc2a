"""The tensor functions that operators and real steps share do what their names say."""

import pytest
import torch

from kernelcast.collector.functions.transformer import (
    causal_attention,
    masked_attention,
    rotary_tables,
    rotate,
    split_qkv,
    swiglu,
    token_loss,
    windowed_mask,
)


def test_rotation_keeps_lengths_and_leaves_position_0() -> None:
    x = torch.randn(2, 5, 3, 8)
    turned = rotate(x, *rotary_tables(5, 8, device=x.device, dtype=x.dtype))
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-5)
    assert torch.equal(turned[:, 0], x[:, 0])
    assert not torch.allclose(turned[:, 1:], x[:, 1:])


def test_rotated_products_depend_on_the_distance_only() -> None:
    query, key = torch.randn(8).expand(1, 6, 1, 8), torch.randn(8).expand(1, 6, 1, 8)
    tables = rotary_tables(6, 8, device=query.device, dtype=query.dtype)
    scores = (rotate(query, *tables)[0, :, 0] @ rotate(key, *tables)[0, :, 0].T).diagonal(-2)
    assert torch.allclose(scores, scores[0].expand_as(scores), atol=1e-5)


def test_attention_is_causal_softmax_attention() -> None:
    b, length, heads, size = 2, 6, 3, 4
    query, key, value = (torch.randn(b, length, heads, size) for _ in range(3))
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / size**0.5
    scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value).flatten(2)
    assert torch.allclose(causal_attention(query, key, value), expected, atol=1e-6)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("window", [0, 3])
def test_every_group_of_queries_attends_to_its_keys_in_the_window(kv_heads: int, window: int) -> None:
    b, queries, keys, heads, size = 2, 3, 4, 4, 8  # as many keys as heads: a mix-up of both shows
    query = torch.randn(b, queries, heads, size)
    key, value = (torch.randn(b, keys, kv_heads, size) for _ in range(2))
    mask = windowed_mask(queries, keys, window, device=query.device) if window else None
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key.repeat_interleave(heads // kv_heads, 2)) / size**0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    values = value.repeat_interleave(heads // kv_heads, 2)
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), values).flatten(2)
    assert torch.allclose(masked_attention(query, key, value, mask), expected, atol=1e-6)
    if kv_heads == heads:
        return
    whole = causal_attention(query, key[:, :queries], value[:, :queries])
    alike = causal_attention(
        query, *(x[:, :queries].repeat_interleave(heads // kv_heads, 2) for x in (key, value))
    )
    assert torch.allclose(whole, alike, atol=1e-6)


def test_a_window_ends_at_each_position() -> None:
    found = windowed_mask(3, 6, 2, device=torch.device("cpu"))
    # Three queries stand at the ends of the thirds of six keys.
    assert found.int().tolist() == [[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]]
    assert windowed_mask(3, 3, 2, device=torch.device("cpu")).int().tolist() == [
        [1, 0, 0],
        [1, 1, 0],
        [0, 1, 1],
    ]


def test_a_fused_projection_is_split_by_heads() -> None:
    qkv = torch.arange(2 * 3 * 8 * 5).view(2, 3, 8 * 5)  # four heads, two of keys and two of values
    query, key, value = split_qkv(qkv, heads=4, kv_heads=2)
    assert [x.shape for x in (query, key, value)] == [(2, 3, 4, 5), (2, 3, 2, 5), (2, 3, 2, 5)]
    assert torch.equal(torch.cat([query, key, value], dim=2).flatten(2), qkv)


def test_a_rotation_turns_each_pair_by_its_angle() -> None:
    x = torch.randn(1, 4, 1, 6)
    turned = rotate(x, *rotary_tables(4, 6, device=x.device, dtype=x.dtype))
    angles = torch.arange(4.0)[:, None] * 10_000.0 ** (-torch.arange(3) / 3)
    expected = torch.complex(x[0, :, 0, :3], x[0, :, 0, 3:]) * torch.polar(torch.ones(4, 3), angles)
    assert torch.allclose(torch.cat([expected.real, expected.imag], -1), turned[0, :, 0], atol=1e-6)


def test_a_gate_comes_first() -> None:
    x = torch.tensor([[[1.0, -2.0, 3.0, 5.0]]])
    silu = [1 / (1 + 2.718281828**-1), -2 / (1 + 2.718281828**2)]
    assert swiglu(x).flatten().tolist() == pytest.approx([3 * silu[0], 5 * silu[1]], rel=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_attention_on_a_gpu_whichever_kernel_runs(kv_heads: int) -> None:
    inputs = [torch.randn(2, 128, heads, 64) for heads in (4, kv_heads, kv_heads)]
    found = causal_attention(*(x.to("cuda", torch.bfloat16) for x in inputs))
    torch.testing.assert_close(found.float().cpu(), causal_attention(*inputs), atol=3e-2, rtol=3e-2)


def test_loss_is_the_mean_over_tokens() -> None:
    logits, targets = torch.zeros(2, 3, 7), torch.zeros(2, 3, dtype=torch.int64)
    assert float(token_loss(logits, targets)) == pytest.approx(1.9459101, rel=1e-6)  # ln 7
