"""The tensor functions that operators and real steps share do what their names say."""

import pytest
import torch

from kernelcast.collector.functions.transformer import causal_attention, rotary_tables, rotate, token_loss


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
