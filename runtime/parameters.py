"""The padded vocabulary (eq. 1, 2) and the parameters of a stage (eq. 6, Table III)."""

from kernelcast.runtime.model import ModelConfig

VOCABULARY_MULTIPLE = 128


def padded_vocabulary(vocabulary_size: int, mp: int) -> int:
    """Vocabulary rows after padding, v = ceil(v_raw / f) · f with f = 128 · mp (eq. 1, 2)."""
    factor = VOCABULARY_MULTIPLE * mp
    return -(-vocabulary_size // factor) * factor


def encoder_parameters(model: ModelConfig, mp: int) -> int:
    """Parameters of one encoder on one device.

    For LayerNorm, GeLU, multi-head attention and an MLP of 4d this is Table III's
    `4d + 8d(d+1)/mp + d(4d+1)/mp`, the biases of all four linears divided by mp as printed there. In general,
    with k = h_kv · d/h and MLP width f:

    - norms: two per encoder, LayerNorm 2d each (weight and bias), RMSNorm d each;
    - attention: queries, keys, values and output, (d + 2k)(d + β)/mp + d(d + β)/mp, with β = 1 for LayerNorm
      and 0 for RMSNorm (models with RMSNorm have no attention biases);
    - MLP: GeLU f(d + 1)/mp + d(f + 1)/mp; SwiGLU three products without bias, 3fd/mp.

    All divisions are exact when mp divides h, h_kv and f, which `Parallelism.check` requires.
    """
    d, f = model.hidden_size, model.mlp_size
    kv_width = model.kv_heads * model.head_size
    bias = 1 if model.norm == "layer_norm" else 0
    norms = 2 * norm_parameters(model)
    attention = (d + 2 * kv_width) * (d + bias) // mp + d * (d + bias) // mp
    mlp = 3 * f * d // mp if model.activation == "swiglu" else f * (d + 1) // mp + d * (f + 1) // mp
    return norms + attention + mlp


def norm_parameters(model: ModelConfig) -> int:
    """Parameters of one norm: 2d for LayerNorm (weight and bias), d for RMSNorm."""
    return (2 if model.norm == "layer_norm" else 1) * model.hidden_size


def stage_parameters(model: ModelConfig, mp: int, *, encoders: int, first: bool, last: bool) -> int:
    """Parameters of a stage on one device (eq. 6, Table III).

    The first stage adds the embedding, v·d/mp; the last the final norm and the output projection, `2d +
    v·d/mp` with LayerNorm. A single stage is both. Learned positions, where a model without rotary
    embedding has them, are not in the paper's table and are not counted.
    """
    vocabulary_matrix = padded_vocabulary(model.vocabulary_size, mp) * model.hidden_size // mp
    total = encoders * encoder_parameters(model, mp)
    if first:
        total += vocabulary_matrix
    if last:
        total += norm_parameters(model) + vocabulary_matrix
    return total
