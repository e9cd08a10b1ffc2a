"""Roles of bare matrix products, from the shapes in the same trace.

The hidden size d is the width of the trace's norms (and of its embedding, where it has one). With K columns in and N
columns out of a forward product:

    qkv               d → 3d, or the only other width; the same count as d → d, and no product back to d
    attention_output  d → d, the same count as qkv
    mlp_up            d → f, the same count as f → d
    mlp_gate_up       d → 2f, the same count as f → d
    mlp_down          f → d, with mlp_up or mlp_gate_up, or with twice the count of d → f (separate gate and up)
    logits            d → rows of the embedding

Where all heads together are wider or narrower than d, qkv is d → n and attention_output w → d, if they are the only
products left. All others (separate queries, keys and values, separate gate and up, slices of tensor parallelism) have
no role.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_LEAST_MLP = 4  # an MLP, also a tensor-parallel slice, is wider than the hidden size divided by this
Width = tuple[int, int]
"""Columns in and columns out."""


@dataclass(frozen=True, slots=True)
class LinearRoles:
    """The roles of the products of one trace, by width."""

    by_width: dict[Width, str]

    @classmethod
    def of(cls, products: Iterable[Width], norm_widths: set[int], embeddings: set[Width]) -> "LinearRoles":
        """Roles from all forward products, the norms' widths and the embeddings' [rows, width]."""
        widths = norm_widths & {d for _, d in embeddings} if norm_widths and embeddings else norm_widths
        widths = widths or {d for _, d in embeddings}
        if len(widths) != 1:
            return cls({})
        (d,) = widths
        counts = Counter(products)
        vocabularies = {rows for rows, width in embeddings if width == d}
        roles = {}
        out = {n: count for (k, n), count in counts.items() if k == d and n != d}
        back = {k: count for (k, n), count in counts.items() if n == d and k != d}
        for n in [n for n in out if n in vocabularies and n not in back]:
            roles[d, n] = "logits"
            del out[n]
        for n in list(out):
            if _LEAST_MLP * n <= d:
                del out[n]  # an adapter of low rank (LoRA), d → 16 → d
            elif back.get(n) == out[n]:
                roles[d, n], roles[n, d] = "mlp_up", "mlp_down"
                del out[n]
            elif n % 2 == 0 and back.get(n // 2) == out[n] and n // 2 not in out:
                roles[d, n], roles[n // 2, d] = "mlp_gate_up", "mlp_down"
                del out[n]
            elif n in back and out[n] == 2 * back[n]:
                roles[n, d] = "mlp_down"
        attention = [n for n in out if n not in back and d < n <= 3 * d and out[n] == counts[d, d]]
        if len(attention) == 1 and len(out) == 1:
            roles[d, attention[0]], roles[d, d] = "qkv", "attention_output"
        left = {k: count for k, count in back.items() if (k, d) not in roles and _LEAST_MLP * k > d}
        if len(out) == 1 and len(left) == 1 and not counts[d, d]:
            [(n, times)], [(width, as_often)] = out.items(), left.items()
            if times == as_often and width < n <= 3 * width:
                roles[d, n], roles[width, d] = "qkv", "attention_output"
        return cls(roles)
