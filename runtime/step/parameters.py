"""The padded vocabulary (eq. 1, 2), the parameters of a stage (eq. 6, Table III) and of a whole model.

Plain arithmetic: where a type says `Count`, numpy arrays go as well as numbers.
"""

from typing import TYPE_CHECKING, Any, TypeVar

from kernelcast.runtime.request.model import ModelConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Count = TypeVar("Count", int, NDArray[np.int64], NDArray[np.float64])
else:
    # numpy is not needed for numbers, and is not imported for a name.
    Count = TypeVar("Count", int, Any, Any)

VOCABULARY_MULTIPLE = 128


def padded_vocabulary(vocabulary_size: int, tp: Count) -> Count:
    """Vocabulary rows after padding, v = ceil(v_raw / f) · f with f = 128 · tp (eq. 1, 2)."""
    factor = VOCABULARY_MULTIPLE * tp
    return -(-vocabulary_size // factor) * factor


def layer_parameters(model: ModelConfig, tp: Count) -> Count:
    """Parameters of one layer on one device.

    For LayerNorm, GeLU, multi-head attention and an MLP of 4d this is Table III's
    `4d + 8d(d+1)/tp + d(4d+1)/tp`, the biases of all four linears divided by tp as printed there. In general,
    with a = h · head size, k = h_kv · head size and MLP width f:

    - norms: two per layer, LayerNorm 2d each (weight and bias), RMSNorm d each;
    - attention: queries, keys and values (a + 2k)(d + β)/tp, output d(a + β)/tp, β = 1 with biases, else 0;
    - MLP: GeLU f(d + β)/tp + d(f + β)/tp; SwiGLU 3fd/tp, with biases (2f + d)/tp more.

    All divisions are exact when tp divides h, h_kv, f and d.
    """
    d, f = model.hidden_size, model.mlp_size
    width = model.attention_heads * model.head_size
    kv_width = model.kv_heads * model.head_size
    qkv_bias = 1 if model.biases in ("all", "attention", "qkv") else 0
    output_bias = 1 if model.biases in ("all", "attention") else 0
    mlp_bias = 1 if model.biases in ("all", "mlp") else 0
    attention = (width + 2 * kv_width) * (d + qkv_bias) // tp + d * (width + output_bias) // tp
    up = 2 * f if model.activation == "swiglu" else f
    mlp = up * (d + mlp_bias) // tp + d * (f + mlp_bias) // tp
    return 2 * norm_parameters(model) + attention + mlp


def norm_parameters(model: ModelConfig) -> int:
    """Parameters of one norm: 2d for LayerNorm (weight and bias), d for RMSNorm."""
    return (2 if model.norm == "layer_norm" else 1) * model.hidden_size


def stage_parameters(
    model: ModelConfig, tp: Count, *, layers: Count, first: Count | bool, last: Count | bool
) -> Count:
    """Parameters of a stage on one device (eq. 6, Table III).

    The first stage adds the embedding, v·d/tp, and learned positions where the model has them (every device
    holds them all); the last the final norm and the output projection, `2d + v·d/tp` with LayerNorm. A single
    stage is both, and then holds tied embeddings once; else both ends hold a copy, as pipelines do.
    """
    vocabulary_matrix = padded_vocabulary(model.vocabulary_size, tp) * model.hidden_size // tp
    shared = first if model.tied_embeddings else 0
    total = layers * layer_parameters(model, tp)
    total = total + first * (vocabulary_matrix + model.learned_positions * model.hidden_size)
    return total + last * (norm_parameters(model) + (1 - shared) * vocabulary_matrix)


def total_parameters(model: ModelConfig) -> int:
    """Parameters of the whole model as published ones are counted: the tokenizer's vocabulary, nothing padded."""
    vocabulary_matrix = model.vocabulary_size * model.hidden_size
    return (
        model.layers * layer_parameters(model, 1)
        + norm_parameters(model)
        + (1 if model.tied_embeddings else 2) * vocabulary_matrix
        + model.learned_positions * model.hidden_size
    )
