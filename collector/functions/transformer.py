"""The tensor functions of a transformer step, shared by the benches and the model that trains for real."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from importlib.metadata import version

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernelcast.collector.functions.vocabulary_parallel import vocabulary_parallel_cross_entropy


@cache
def flash_attn_version() -> str:
    """Version of the package; empty where it is missing or does not load: it is compiled for one torch and one CUDA."""
    return version("flash-attn") if _function() is not None else ""


def flash_attn(query: Tensor, key: Tensor, value: Tensor) -> Tensor | None:
    """Causal attention of query [b, l, heads, head_size], key and value [b, l, kv_heads, head_size] → as query.

    All are 16-bit on CUDA. None where the package cannot be used.
    """
    function = _function()
    return None if function is None else function(query, key, value, causal=True)


@cache
def _function() -> Callable[..., Tensor] | None:
    try:
        version("flash-attn")
        found: Callable[..., Tensor] = import_module("flash_attn").flash_attn_func
    except Exception:  # built for another torch it fails in many ways
        return None
    return found


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """Add the bias [width] of a linear to its product x [..., width]: its own kernel, as under tensor parallelism."""
    return x + bias


def split_qkv(qkv: Tensor, *, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Views of a fused projection [b, l, (heads + 2 · kv_heads) · head_size]: query, key, value [b, l, …, size]."""
    head_size = qkv.shape[-1] // (heads + 2 * kv_heads)
    widths = [heads * head_size, kv_heads * head_size, kv_heads * head_size]
    query, key, value = torch.split_with_sizes(qkv, widths, dim=-1)
    return (
        query.view(*query.shape[:2], heads, head_size),
        key.view(*key.shape[:2], kv_heads, head_size),
        value.view(*value.shape[:2], kv_heads, head_size),
    )


def rotary_tables(
    sequence_length: int, head_size: int, *, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosine and sine tables [1, l, 1, head_size] of rotary position embedding (arXiv 2104.09864, eq. 34)."""
    inverse_frequency = 10_000.0 ** -(
        torch.arange(0, head_size, 2, device=device, dtype=torch.float32) / head_size
    )
    angles = torch.outer(torch.arange(sequence_length, device=device, dtype=torch.float32), inverse_frequency)
    angles = torch.cat((angles, angles), dim=-1)[None, :, None, :]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate x [b, l, heads, head_size] by its positions, in the half-split form of GPT-NeoX and LLaMA."""
    half = x.shape[-1] // 2
    swapped = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cosine + swapped * sine


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Fused causal attention of query [b, l, heads, head_size] → [b, l, heads · head_size].

    Key and value [b, l, kv_heads, head_size] may have fewer heads, one per group of query heads. On CUDA flash-attn is
    called where it is installed, as in frameworks; otherwise torch's flash kernel is forced, because torch might
    silently pick another one.
    """
    if query.device.type == "cuda" and (out := flash_attn(query, key, value)) is not None:
        return out.flatten(2)
    return _fused_attention(query, key, value, None, is_causal=True)


def windowed_mask(queries: int, keys: int, window: int, *, device: torch.device) -> Tensor:
    """Visible keys of each query, bool [queries, keys]: the last `window` up to its position, queries spread evenly.

    With equal numbers of queries and keys it is the mask of a sliding window.
    """
    last = (torch.arange(1, queries + 1, device=device) * keys) // queries
    positions = torch.arange(keys, device=device)
    return (positions < last[:, None]) & (positions >= last[:, None] - window)


def masked_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Fused attention of query [b, l, heads, s] to keys and values [b, l_key, kv_heads, s] → [b, l, heads · s].

    `mask` is bool [l, l_key]; None where every query sees every key. On CUDA, torch's flash kernel takes no mask.
    """
    return _fused_attention(query, key, value, mask, is_causal=False)


def _fused_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, is_causal: bool
) -> Tensor:
    inputs = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    flash = mask is None and query.device.type == "cuda"
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if flash else nullcontext():
        out = F.scaled_dot_product_attention(
            *inputs, attn_mask=mask, is_causal=is_causal, enable_gqa=key.shape[2] != query.shape[2]
        )
    return out.transpose(1, 2).flatten(2)


def swiglu(gate_and_up: Tensor) -> Tensor:
    """SiLU-gated linear unit of [b, l, 2 · width], gate first → [b, l, width] (arXiv 2002.05202)."""
    gate, up = gate_and_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of logits [b, l, v] against targets [b, l], the whole vocabulary on this device."""
    return vocabulary_parallel_cross_entropy(logits, targets, 0).mean()
