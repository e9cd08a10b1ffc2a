"""What is kept of one layer between its forward and its backward pass, tensor by tensor."""

from dataclasses import dataclass

from kernelcast.runtime.memory.rows import Floats, Rows
from kernelcast.runtime.request.model import ModelConfig

STATISTIC_BYTES = 4
"""Norms and flash attention keep their statistics in fp32."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes that one layer keeps for one micro-batch on one device, float64 [rows].

    `block_input` is all that full recomputation keeps; `attention` and `mlp` are the rest of the two halves,
    `core` what lies between queries and attention output, which selective recomputation does not keep.
    `for_weights` is what a backward pass without weight gradients leaves for those (zero-bubble).
    """

    block_input: Floats
    attention: Floats
    core: Floats
    mlp: Floats
    for_weights: Floats

    @property
    def total(self) -> Floats:
        """Everything, without recomputation."""
        return self.block_input + self.attention + self.core + self.mlp


@dataclass(frozen=True, slots=True)
class Widths:
    """Entries per token of one device's tensors, float64 [rows]; b·l tokens each.

    `outside` is d, divided by tp with sequence parallelism; the others are always divided by tp: `projected`
    (queries, keys and values), `attended` (all heads), `scores` (heads times sequence), `mlp`, `vocabulary`.
    """

    tokens: Floats
    hidden: int
    outside: Floats
    projected: Floats
    attended: Floats
    keys: Floats
    scores: Floats
    mlp: Floats

    @classmethod
    def of(cls, model: ModelConfig, rows: Rows) -> "Widths":
        """The widths of `model` on the devices of `rows`."""
        heads, kv_heads = model.attention_heads / rows.tp, model.kv_heads / rows.tp
        return cls(
            tokens=rows.micro_batch * model.sequence_length,
            hidden=model.hidden_size,
            outside=model.hidden_size / (1.0 + rows.sequence_parallel * (rows.tp - 1.0)),
            projected=(heads + 2.0 * kv_heads) * model.head_size,
            attended=heads * model.head_size,
            keys=kv_heads * model.head_size,
            scores=heads * model.sequence_length,
            mlp=model.mlp_size / rows.tp,
        )


def kept_by_layer(
    model: ModelConfig, widths: Widths, *, element: int, dropout: bool, device_kind: str
) -> Kept:
    """Tensors that autograd saves in one layer, for `element` bytes per entry.

    Entries per token; d hidden, a and k the widths of all query and all key-value heads, f of the MLP, l the
    sequence, h heads:

    | part | saved | entries | divided by |
    |---|---|---|---|
    | input | of the first norm, which is the layer's | d | σ |
    | attention | norm statistics (fp32: mean and deviation; RMSNorm has one) | 2 or 1 | σ |
    | | norm's output, the input of the QKV product | d | σ |
    | | queries, keys, values | a + 2k | tp |
    | | rotated queries and keys; the values, a view, keep the whole QKV product too | a + k | tp |
    | | not flash, grouped queries: instead queries, and keys and values repeated for all | 3a | tp |
    | | attention output, the input of the output product | a | tp |
    | core | flash: log-sum-exp (fp32) | h | tp |
    | | else: weights after the softmax | h·l | tp |
    | MLP | input of the second norm; with a parallel residual it is the first's | d | σ |
    | | norm statistics and output, as above | d | σ |
    | | GeLU: input and output | 2f | tp |
    | | SwiGLU: gate and up, gate after SiLU, their product | 4f | tp |

    σ is tp with sequence parallelism, else 1. Dropout adds its masks, a byte each: d / σ after either half,
    and h·l / tp with the dropped weights (h·l entries more) in the core; fused attention keeps a seed
    instead. On a CPU torch runs both in pieces: masks take an entry each, and an RMSNorm also keeps its
    input divided by the root mean square, both in fp32.

    With GeLU, LayerNorm, dropout and a softmax of its own this is eq. 1–4 of arXiv 2205.05198,
    sbh(34 + 5as/h), but for the norms' statistics, which it leaves out.

    For its weight gradients a backward pass leaves every product's input and output gradient.
    """
    w = widths
    tokens, hidden = w.tokens, w.outside * w.tokens
    norm = _norm_bytes(model, widths, element, device_kind=device_kind)
    mask = mask_bytes(element, dropout=dropout, device_kind=device_kind)
    second_input = 0.0 if model.parallel_residual else element
    up = 2 if model.activation == "swiglu" else 1
    activated = 4 if model.activation == "swiglu" else 2
    return Kept(
        block_input=element * hidden,
        attention=norm + mask * hidden + element * tokens * (_attention_inputs(model, widths) + w.attended),
        core=tokens * _core_bytes(model, widths, element, mask),
        mlp=norm + mask * hidden + second_input * hidden + element * tokens * activated * w.mlp,
        for_weights=element * (4 * hidden + tokens * (w.projected + w.attended + (up + 1) * w.mlp)),
    )


def _norm_bytes(model: ModelConfig, widths: Widths, element: int, *, device_kind: str) -> Floats:
    """What a norm keeps beside its input: statistics, and its output for the product that follows."""
    hidden = widths.outside * widths.tokens
    statistics = hidden / widths.hidden * STATISTIC_BYTES * (2 if model.norm == "layer_norm" else 1)
    if model.norm == "layer_norm" or device_kind != "cpu":
        return statistics + element * hidden
    # The input in fp32 is a copy unless it is fp32 already.
    normalised = 4 * hidden if element == 4 else 8 * hidden
    return statistics + element * hidden + normalised


def _attention_inputs(model: ModelConfig, widths: Widths) -> Floats:
    """Entries per token of the tensors from the QKV product to the scores."""
    if model.attention != "flash" and model.kv_heads < model.attention_heads:
        # Copies of keys and values; queries that were not rotated are a view of the QKV product.
        return 2.0 * widths.attended + (widths.attended if model.rotary else widths.projected)
    return widths.projected + (widths.attended + widths.keys if model.rotary else 0.0)


def _core_bytes(model: ModelConfig, widths: Widths, element: int, mask: int) -> Floats:
    """Bytes per token between queries and attention output; `mask` bytes per dropped weight, 0 without dropout."""
    if model.attention == "flash":
        return STATISTIC_BYTES * widths.attended / model.head_size
    return widths.scores * (2 * element + mask if mask else element)


def mask_bytes(element: int, *, dropout: bool, device_kind: str) -> int:
    """Bytes per entry of a dropout's mask."""
    if not dropout:
        return 0
    return element if device_kind == "cpu" else 1
