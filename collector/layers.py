"""The tensor functions of a transformer step, shared by the operator benchmarks and the model that trains for real.

Both sides call these, so what is measured alone is what a step runs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


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
    """Rotate x [b, l, heads, head_size] by its positions, in the half-split form that GPT-NeoX and LLaMA use."""
    half = x.shape[-1] // 2
    swapped = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cosine + swapped * sine


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Fused causal attention; all [b, l, heads, head_size] → [b, l, heads · head_size]."""
    out = F.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True
    )
    return out.transpose(1, 2).flatten(2)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of logits [b, l, v] against targets [b, l]."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
