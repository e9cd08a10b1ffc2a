"""Operators between the QKV projection and the output projection of attention, except matrix products."""

from importlib.util import find_spec

import torch
from torch import Tensor

from kernelcast.collector.benches.bench import Bench, Place, Point, UnsupportedError
from kernelcast.collector.functions.transformer import (
    causal_attention,
    masked_attention,
    rotary_tables,
    rotate,
    split_qkv,
    windowed_mask,
)

_SCALE = 0.125  # of the scores; its value changes no time


def qkv_split(point: Point, place: Place) -> Bench:
    """Forward views of queries, keys and values; backward a concatenation of the three gradients."""
    rows, columns = point.vector
    fused, third = place.activation(1, rows, columns), columns // 3
    # Heads of one entry: head size has no effect on the time.
    return Bench(lambda: split_qkv(fused, heads=columns - 2 * third, kv_heads=third), [fused])


def rope(point: Point, place: Place) -> Bench:
    query, key, _ = _split(point, place)
    cosine, sine = rotary_tables(query.shape[1], query.shape[-1], device=place.device, dtype=place.dtype)
    return Bench(lambda: (rotate(query, cosine, sine), rotate(key, cosine, sine)), [query, key])


def flash_attention(point: Point, place: Place) -> Bench:
    """Fused causal attention with a key-value head per group of query heads."""
    if place.device.type == "cuda" and place.dtype == torch.float32:
        raise UnsupportedError("flash attention on CUDA needs fp16 or bf16, found fp32")
    query, key, value = _split(point, place)
    return Bench(lambda: causal_attention(query, key, value), [query, key, value])


def attention_block(point: Point, place: Place) -> Bench:
    """Fused attention of queries to other keys: all keys, or a window with the same mean number of visible keys."""
    b, queries, keys, visible, heads, kv_heads, head_size = point.vector
    if place.device.type == "cuda" and place.dtype == torch.float32:
        raise UnsupportedError("flash attention on CUDA needs fp16 or bf16, found fp32")
    query = place.activation(b, queries, heads, head_size)
    key, value = (place.activation(b, keys, kv_heads, head_size) for _ in range(2))
    mask = _visible_mask(queries, keys, visible, place)
    return Bench(lambda: masked_attention(query, key, value, mask), [query, key, value])


def _visible_mask(queries: int, keys: int, visible: int, place: Place) -> Tensor | None:
    """A mask that leaves a query `visible` keys in the mean, approximately; None where it sees all."""
    if visible >= keys:
        return None
    if visible > (keys + 1) / 2:  # more than under a causal mask
        return (torch.arange(keys, device=place.device) < visible).expand(queries, keys).contiguous()
    # With queries spread evenly over the keys, a window w leaves w - w(w - 1) / (2 keys) in the mean.
    window = min(range(1, keys + 1), key=lambda w: abs(w - w * (w - 1) / (2 * keys) - visible))
    return windowed_mask(queries, keys, window, device=place.device)


def _split(point: Point, place: Place) -> list[Tensor]:
    """Query, key and value as views of one projection, each with its own gradient."""
    b, length, heads, kv_heads, head_size = point.vector
    fused = place.activation(b, length, (heads + 2 * kv_heads) * head_size).detach()
    return [view.requires_grad_() for view in split_qkv(fused, heads=heads, kv_heads=kv_heads)]


def causal_mask_fill(point: Point, place: Place) -> Bench:
    scores, mask = place.activation(*point.vector), _masked_above_diagonal(point, place)
    lowest = torch.finfo(place.dtype).min
    return Bench(lambda: scores.masked_fill(mask, lowest), [scores])


def softmax(point: Point, place: Place) -> Bench:
    scores = place.activation(*point.vector)
    return Bench(lambda: torch.softmax(scores, dim=-1), [scores])


def fused_causal_softmax(point: Point, place: Place) -> Bench:
    """Scale, mask and softmax in one kernel from torch.compile."""
    if place.device.type != "cuda":
        raise UnsupportedError(f"no fused scale-mask-softmax kernel on device type '{place.device.type}'")
    if find_spec("triton") is None:
        raise UnsupportedError(
            "no fused scale-mask-softmax kernel: torch.compile needs triton, which is not installed"
        )
    return compiled_causal_softmax(point, place)


def compiled_causal_softmax(point: Point, place: Place) -> Bench:
    """`fused_causal_softmax` on any device where torch.compile compiles it; UnsupportedError on others."""
    scores, mask = place.activation(*point.vector), _masked_above_diagonal(point, place)
    lowest = torch.finfo(place.dtype).min
    # A kernel for this shape alone, as in a training step, whatever was compiled before.
    torch._dynamo.reset()
    fused = torch.compile(
        lambda x: torch.softmax((x * _SCALE).masked_fill(mask, lowest), dim=-1), dynamic=False
    )
    try:
        torch.autograd.backward(fused(scores).sum())  # compiles both directions
    except (torch.OutOfMemoryError, MemoryError):
        raise  # not a property of the device
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UnsupportedError(
            f"no fused scale-mask-softmax kernel: torch.compile failed ({reason})"
        ) from error
    scores.grad = None
    return Bench(lambda: fused(scores), [scores])


def _masked_above_diagonal(point: Point, place: Place) -> Tensor:
    return torch.ones(point.vector[-2:], dtype=torch.bool, device=place.device).triu(1)
