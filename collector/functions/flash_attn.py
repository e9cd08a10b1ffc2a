"""The flash-attn package (github.com/Dao-AILab/flash-attention), which frameworks call where it is installed."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import version

from torch import Tensor


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
