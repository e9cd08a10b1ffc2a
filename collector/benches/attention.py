"""What lies between the QKV projection and the attention's output projection."""

from importlib.util import find_spec

import torch
from torch import Tensor

from kernelcast.collector.benches.bench import Bench, Place, UnsupportedError
from kernelcast.collector.functions.transformer import causal_attention, rotary_tables, rotate, split_qkv
from kernelcast.runtime.operators import Shape


def _fused_projection(s: Shape, place: Place) -> Tensor:
    return place.activation(s.micro_batch, s.sequence_length, s.qkv_width // s.tensor_parallel)


def _split(s: Shape, place: Place, kv_heads: int) -> list[Tensor]:
    """Query, key and value as views of one projection, each with a gradient of its own."""
    width = (s.local_heads + 2 * kv_heads) * s.head_size
    fused = place.activation(s.micro_batch, s.sequence_length, width).detach()
    return [view.requires_grad_() for view in split_qkv(fused, heads=s.local_heads, kv_heads=kv_heads)]


def qkv_split(s: Shape, place: Place) -> Bench:
    """The three gradients put side by side; queries, keys and values forward are views."""
    fused = _fused_projection(s, place)
    return Bench(lambda: split_qkv(fused, heads=s.local_heads, kv_heads=s.local_kv_heads), [fused])


def _rotated(s: Shape, place: Place, kv_heads: int) -> Bench:
    query, key, _ = _split(s, place, kv_heads)
    cosine, sine = rotary_tables(s.sequence_length, s.head_size, device=place.device, dtype=place.dtype)
    return Bench(lambda: (rotate(query, cosine, sine), rotate(key, cosine, sine)), [query, key])


def rope(s: Shape, place: Place) -> Bench:
    """Rotary embedding of as many keys as queries."""
    return _rotated(s, place, s.local_heads)


def grouped_rope(s: Shape, place: Place) -> Bench:
    """Rotary embedding of fewer keys than queries."""
    return _rotated(s, place, s.local_kv_heads)


def _flash(s: Shape, place: Place, kv_heads: int) -> Bench:
    if place.device.type == "cuda" and place.dtype == torch.float32:
        raise UnsupportedError("flash attention on CUDA needs fp16 or bf16, found fp32")
    query, key, value = _split(s, place, kv_heads)
    return Bench(lambda: causal_attention(query, key, value), [query, key, value])


def flash_attention(s: Shape, place: Place) -> Bench:
    """Fused causal attention, as many key-value heads as query heads."""
    return _flash(s, place, s.local_heads)


def grouped_flash_attention(s: Shape, place: Place) -> Bench:
    """Fused causal attention, a key-value head per group of queries."""
    return _flash(s, place, s.local_kv_heads)


def attention_scores(s: Shape, place: Place) -> Bench:
    """Queries × keys of all heads."""
    heads = s.micro_batch * s.local_heads
    query = place.activation(heads, s.sequence_length, s.head_size)
    key = place.activation(heads, s.sequence_length, s.head_size)
    return Bench(lambda: torch.bmm(query, key.transpose(1, 2)), [query, key])


def attention_values(s: Shape, place: Place) -> Bench:
    """Attention weights × values of all heads."""
    heads = s.micro_batch * s.local_heads
    weights = place.activation(heads, s.sequence_length, s.sequence_length)
    value = place.activation(heads, s.sequence_length, s.head_size)
    return Bench(lambda: torch.bmm(weights, value), [weights, value])


def _scores(s: Shape, place: Place) -> Tensor:
    return place.activation(s.micro_batch, s.local_heads, s.sequence_length, s.sequence_length)


def _masked_above_diagonal(s: Shape, place: Place) -> Tensor:
    return torch.ones(s.sequence_length, s.sequence_length, dtype=torch.bool, device=place.device).triu(1)


def causal_mask_fill(s: Shape, place: Place) -> Bench:
    """The mask filled into the scores."""
    scores, mask = _scores(s, place), _masked_above_diagonal(s, place)
    lowest = torch.finfo(place.dtype).min
    return Bench(lambda: scores.masked_fill(mask, lowest), [scores])


def softmax(s: Shape, place: Place) -> Bench:
    """Softmax over the keys."""
    scores = _scores(s, place)
    return Bench(lambda: torch.softmax(scores, dim=-1), [scores])


def fused_causal_softmax(s: Shape, place: Place) -> Bench:
    """Scale, mask and softmax in one kernel that torch.compile makes."""
    if place.device.type != "cuda":
        raise UnsupportedError(f"no fused scale-mask-softmax kernel on device type '{place.device.type}'")
    if find_spec("triton") is None:
        raise UnsupportedError(
            "no fused scale-mask-softmax kernel: torch.compile needs triton, which is not installed"
        )
    return compiled_causal_softmax(s, place)


def compiled_causal_softmax(s: Shape, place: Place) -> Bench:
    """The same on any device that torch.compile knows.

    Raises:
        UnsupportedError: it cannot be compiled.
    """
    scores, mask = _scores(s, place).detach().flatten(0, 1).requires_grad_(), _masked_above_diagonal(s, place)
    scale, lowest = s.head_size**-0.5, torch.finfo(place.dtype).min
    # A kernel of this shape's own, as a training step has, whatever was compiled before.
    torch._dynamo.reset()
    fused = torch.compile(
        lambda x: torch.softmax((x * scale).masked_fill(mask, lowest), dim=-1), dynamic=False
    )
    try:
        torch.autograd.backward(fused(scores).sum())  # compiles both directions
    except (torch.OutOfMemoryError, MemoryError):
        raise  # of this shape and now, not of the device
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UnsupportedError(
            f"no fused scale-mask-softmax kernel: torch.compile failed ({reason})"
        ) from error
    scores.grad = None
    return Bench(lambda: fused(scores), [scores])
