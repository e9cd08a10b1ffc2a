"""Mamba-2 and gated delta nets in the place of attention: projection, convolution, scan, gated norm, projection.

Both read one product: values (x, v), what writes to and reads from the state (B, C; k, q), a gate (z), and numbers
of each head (dt; beta, alpha). Tensor parallelism cuts their heads and groups, context parallelism exchanges heads
for tokens around convolution and scan (Megatron-core's MambaMixer and GatedDeltaNet). Step sizes and decays of each
head, which are in fp32, and states between chunks, which backward passes compute again, are not among what is kept.
Mamba-2's kernels compute the convolution again too (mamba_ssm's `mamba_split_conv1d_scan_combined`).
"""

from typing import Any, NamedTuple

from kernelcast.runtime.step.layers.attention_core import exchange
from kernelcast.runtime.step.layers.linear import dropout, linear
from kernelcast.runtime.step.layers.tensor_parallel import Mixer
from kernelcast.runtime.step.op import Number, Ops, flag, op
from kernelcast.runtime.step.sizes import Sizes

IN, OUT = "recurrent_in", "recurrent_out"
_TAPS = 4
"""Tokens that the convolution of a channel reads."""


class Recurrence(NamedTuple):
    """How a mixer scans. Per head or channel: `read` numbers of the projection, `parameters` of its own, `kept` entries
    per token. `biases` of a convolved channel; `norms_channels`: a weight per channel of the norm, else per channel of
    one head; `convolves_again`: that output is not kept; `gates`: the scan's.
    """

    scan: str
    read: int
    parameters: int
    kept: int
    biases: int
    norms_channels: bool
    convolves_again: bool
    gates: bool


RECURRENCES = {
    # dt; A, D and dt's bias (arXiv 2405.21060, mamba_ssm's Mamba2).
    "mamba2": Recurrence("state_space_scan", 1, 3, 0, 1, True, True, True),
    # beta and alpha; A and dt's bias; the inverse within a chunk of 64 tokens (arXiv 2412.06464, FLA's kernels).
    "gated_delta_net": Recurrence("gated_delta_rule", 2, 2, 64, 0, False, False, False),
}


def recurrent_mixer(s: Sizes) -> Ops:
    """One mixer; column-parallel, then row-parallel. Parameters: d(2w + 2gn + r·h), w = h · head size, r numbers per
    head; 4 (and a bias) of w + 2gn convolved channels; a few per head; the norm's; w·d. All but a norm per head over
    tp.
    """
    own, element, rows, width = RECURRENCES[s.kind.mixer], s.element_bytes, s.tokens, s.recurrent_width
    model, channels, projected = s.model, s.convolved_width, projected_width(s)
    # Whole sequences, and a cp-th of the heads.
    batch, length = s.micro_batch, model.sequence_length
    heads = (s.recurrent_groups // s.cp, s.recurrent_heads // s.cp)
    kept = own.kept * s.recurrent_heads + (0 if own.convolves_again else channels)
    late = element * (s.local_tokens * s.hidden + rows * projected)
    # Megatron-core has tokens first, the kernels of Mamba-2 samples; of one sample both are the same.
    transposes = flag(batch > 1) * int(own.gates and s.layout.kept_by == "megatron")
    convolved: dict[str, Any] = {
        "parameters": channels * (_TAPS + own.biases),
        "saves": element * rows * projected,
    }
    states = (batch, length, *heads, model.recurrent_state_size, model.recurrent_head_size)
    scanned: dict[str, Any] = {
        "parameters": own.parameters * s.recurrent_heads,
        "saves": element * rows * kept,
    }
    # Mamba-2's scan has the gate. Else one kernel reads output and gate and writes one, as a gated activation does.
    norm = "rms_norm" if own.gates else "swiglu"
    normed: dict[str, Any] = {"parameters": width if own.norms_channels else model.recurrent_head_size}
    normed["saves"] = element * rows * width
    late_out = element * (rows * width + s.local_tokens * s.hidden)
    convolution = ("causal_convolution", batch, length, channels // s.cp)
    return (
        *linear(s, "attention", IN, rows, s.hidden, projected, late=late),
        exchange(s, "exchange_projected", "all_to_all", rows * projected, "both"),
        op("samples_first", "copy", rows, projected, count=transposes),
        op("convolution", *convolution, **convolved, reruns=own.convolves_again, needs="input"),
        op("scan", own.scan, *states, **scanned, needs="input"),
        op("tokens_first", "copy", rows, width, count=transposes),
        op("gated_norm", norm, batch, s.length, width, **normed, needs="input"),
        exchange(s, "exchange_mixed", "all_to_all", rows * width, "both"),
        *linear(s, "attention", OUT, rows, width, s.hidden, keeps_input=True, late=late_out),
        dropout(s, "mixer_dropout"),
    )


def recurrent_gradient_bytes(s: Sizes) -> Number:
    """Gradients in use at the fullest moment of its backward pass: of the scan's output, and of the projected."""
    return s.element_bytes * s.tokens * (s.recurrent_width + projected_width(s))


def projected_width(s: Sizes) -> Number:
    """Columns of the projection on one device: the convolved channels, the gate, and the numbers of each head."""
    return s.convolved_width + s.recurrent_width + RECURRENCES[s.kind.mixer].read * s.recurrent_heads


RECURRENT = Mixer(recurrent_mixer, lambda s: (IN,), OUT, recurrent_gradient_bytes)
