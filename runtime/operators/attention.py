"""Operators between the QKV projection and the attention's output projection, other than matrix products.

Linear attention and state-space layers (Mamba-2, gated delta nets) are chunked scans (arXiv 2405.21060, section 6;
2412.06464, section 3.3): products within chunks of tokens, and a state per head of key (or state) size × value (or
head) size that is handed from chunk to chunk.
"""

from collections.abc import Mapping

from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.operators.elementwise import elementwise
from kernelcast.runtime.operators.gemm import FLOAT8
from kernelcast.runtime.operators.operator import (
    BOTH_PASSES,
    Direction,
    Operator,
    OperatorClass,
    Substitute,
    Vector,
    as_it_is,
    cost,
    only_role,
)

_HEADS: Mapping[str, str] = {
    "b": "samples",
    "l": "tokens",
    "heads": "heads",
    "kv_heads": "heads",
    "head_size": "elements",
}
_SCORES = {"b": "samples", "heads": "heads", "l_query": "tokens", "l_key": "tokens"}

# Where no grouped queries were measured, times are predicted as if every query head had its own keys and values.
_GROUPED = ("kv_heads", "heads")

WITHOUT_MASK = "without mask"
"""Variant of an attention whose every query sees every key: twice the FLOPs of a causal one."""

FLASH_ATTENTION = Operator(
    name="flash_attention",
    # If query and key heads have another size than value heads, `head_size` is the mean of both: FLOPs and bytes are
    # the same.
    title="fused causal attention; each key-value head serves an equal group of query heads",
    operator_class=OperatorClass.COMPUTE,
    features=_HEADS,
    # Two products forward and five backward, half of each masked away (arXiv 2205.14135, section 3 and app. B).
    costs={
        Direction.FORWARD: cost(
            flops="2 b l l heads head_size", elements="2 b l heads head_size + 2 b l kv_heads head_size"
        ),
        Direction.BACKWARD: cost(
            flops="5 b l l heads head_size", elements="4 b l heads head_size + 4 b l kv_heads head_size"
        ),
    },
    roles=only_role("Flash Attention", "fused causal attention"),
    variant_flops={WITHOUT_MASK: 2.0},
    # Backward over forward, of long kernels: 3.1 in the median of Perlmutter's, 2.8 to 3.0 of SimuMax's A100 and B200.
    backward_slowdown=1.2,
    equal_unless_measured=_GROUPED,
    folded=("b", ("heads", "kv_heads")),  # every head of every sample is computed by itself
    divisible=("b", "l", "heads"),  # l into blocks, as a ring of devices computes them
)


# Time in 8 bit over that in 16, heads of 128. Forward kernels of 1 to 10 TFLOP: medians 0.80 (B200; SGLang 0.5.14:
# 0.92), 0.82 (GB200), 0.74 (B300), 0.77 (GB300) with TensorRT-LLM 1.3, by ai-dynamo/aiconfigurator. Backward,
# causal, of 8,192 and 16,384 tokens: 0.79 and 0.78 (B200), 0.96 and 0.95 (GB200), 0.76 and 0.74 (GB300) with cuDNN
# of 2025, 0.89 and 0.86 (GB200), 0.87 and 0.85 (GB300) with cuDNN 9.19 (NVIDIA/cudnn-frontend,
# benchmark/sdpa_benchmark_training).
FLASH_ATTENTION_FLOAT8 = replace(
    FLASH_ATTENTION,
    name="flash_attention_float8",
    title="fused causal attention of queries, keys and values in 8 bit",
    # An element is a byte; results have 16 bits.
    costs={
        Direction.FORWARD: cost(
            flops="2 b l l heads head_size", elements="3 b l heads head_size + 2 b l kv_heads head_size"
        ),
        Direction.BACKWARD: cost(
            flops="5 b l l heads head_size", elements="7 b l heads head_size + 6 b l kv_heads head_size"
        ),
    },
    roles=only_role("", "fused causal attention in 8 bit"),
    dtype=FLOAT8,
    substitute=Substitute(
        operator="flash_attention", factor=0.81, backward_factor=0.86, asks=as_it_is, within=1.2
    ),
    is_on_request=True,
)


def _causal(vector: Vector) -> tuple[Vector, float]:
    """Causal attention with the same mean of visible keys per query: over sequences of twice that length."""
    b, l_query, _, visible, *heads = vector
    length = max(1, 2 * visible - 1)
    samples = b * l_query / length
    whole = max(1, round(samples))
    return (whole, length, *heads), samples / whole


ATTENTION_BLOCK = Operator(
    name="attention_block",
    title="fused attention of some queries to some keys; a query sees `visible` keys on average",
    operator_class=OperatorClass.COMPUTE,
    features={
        "b": "samples",
        "l_query": "tokens",
        "l_key": "tokens",
        "visible": "tokens",
        "heads": "heads",
        "kv_heads": "heads",
        "head_size": "elements",
    },
    costs={
        Direction.FORWARD: cost(
            flops="4 b l_query visible heads head_size",
            elements="2 b l_query heads head_size + 2 b l_key kv_heads head_size",
        ),
        Direction.BACKWARD: cost(
            flops="10 b l_query visible heads head_size",
            elements="4 b l_query heads head_size + 4 b l_key kv_heads head_size",
        ),
    },
    roles=only_role("", "attention through a window, between documents, or of a device's part of a sequence"),
    backward_slowdown=FLASH_ATTENTION.backward_slowdown,
    is_optional=True,
    substitute=Substitute(operator="flash_attention", asks=_causal),
)

ROPE = Operator(
    name="rope",
    title="rotary position embedding of queries and keys",
    operator_class=OperatorClass.MEMORY,
    features=_HEADS,
    costs=dict.fromkeys(
        BOTH_PASSES,
        cost(
            flops="3 b l heads head_size + 3 b l kv_heads head_size",
            elements="2 b l heads head_size + 2 b l kv_heads head_size",
        ),
    ),
    roles=only_role("RoPE", "rotary position embedding of queries and keys"),
    is_elementwise=True,
    equal_unless_measured=_GROUPED,
    substitute=Substitute(operator="residual_add", alike=True),
)

# To fp32 (3), times the turns as complex numbers (4), back to 16 bit (3), of queries and of keys (torchtitan's
# apply_rotary_emb); backward the turns are conjugated too.
EAGER_ROPE = replace(
    ROPE,
    name="eager_rope",
    title="rotary position embedding in fp32 by separate kernels",
    costs=dict.fromkeys(
        BOTH_PASSES,
        cost(
            flops="3 b l heads head_size + 3 b l kv_heads head_size",
            elements="10 b l heads head_size + 10 b l kv_heads head_size",
            least="2 b l heads head_size + 2 b l kv_heads head_size",
        ),
    ),
    roles=only_role("", "rotary position embedding by separate kernels"),
    is_optional=True,
    is_on_request=True,
    kernels={Direction.FORWARD: 6, Direction.BACKWARD: 8},
)

# fmt: off
# In place, the masked half alone.
CAUSAL_MASK_FILL = elementwise("causal_mask_fill", "Fillmask", "causal mask filled into the scores", _SCORES,
                               forward=(0, 2), backward=(0, 2), least=(0.5, 0.5))
SOFTMAX = elementwise("softmax", "Softmax", "softmax over the keys, unfused", _SCORES, forward=(5, 2), backward=(4, 3))
# Nothing of the masked half is read.
FUSED_CAUSAL_SOFTMAX = elementwise("fused_causal_softmax", "Fused Softmax",
                                   "scale, causal mask and softmax in one kernel",
                                   {"batch_heads": "heads", "l_query": "tokens", "l_key": "tokens"},
                                   forward=(6, 2), backward=(5, 3), least=(1.5, 1.5))
QKV_SPLIT = elementwise("qkv_split", "", "gradients of queries, keys and values put into one tensor; forward they are "
                        "views of one product", {"rows": "tokens", "columns": "elements"},
                        forward=None, backward=(0, 2), is_optional=True)
# fmt: on


# Four taps; backward reads input and gradient, and writes one.
CAUSAL_CONVOLUTION = elementwise(
    "causal_convolution",
    "",
    "short causal convolution of every channel over the tokens, with its activation",
    {"b": "samples", "l": "tokens", "channels": "channels"},
    forward=(8, 2),
    backward=(16, 3),
    is_optional=True,
    is_on_request=True,
)

_CHUNK, _MAMBA_CHUNK = 64, 128
"""Tokens of a chunk in the kernels that were measured (flash-linear-attention), and in Megatron-core's Mamba-2."""

GATED_DELTA_RULE = Operator(
    name="gated_delta_rule",
    title="chunked scan of the gated delta rule",
    operator_class=OperatorClass.MEMORY,
    features={
        "b": "samples",
        "l": "tokens",
        "key_heads": "heads",
        "heads": "heads",
        "key_size": "elements",
        "value_size": "elements",
    },
    # Within a chunk: scores, and keys by keys, with both sizes; between chunks: three products with the state. The
    # state is written once per chunk.
    costs={
        direction: cost(
            flops=f"{times * 4 * _CHUNK} b l heads key_size + {times * 4 * _CHUNK} b l heads value_size "
            f"+ {times * 6} b l heads key_size value_size",
            elements=f"{times * 2} b l key_heads key_size + {times * 2} b l heads value_size "
            f"+ {times * 2 / _CHUNK} b l heads key_size value_size",
            least=f"{times * 2} b l key_heads key_size + {times * 2} b l heads value_size",
        )
        for direction, times in ((Direction.FORWARD, 1), (Direction.BACKWARD, 2))
    },
    roles=only_role("", "chunked scan of the gated delta rule"),
    is_on_request=True,
)


def _as_delta_rule(vector: Vector) -> tuple[Vector, float]:
    """A delta rule over states as large, times the ratio of what the kernels move per token: scores of keys in fp32,
    their inverse, keys and values times it, states, new values, results (flash-linear-attention's
    `chunk_gated_delta_rule_fwd`).
    """
    b, length, groups, heads, state_size, head_size = vector
    keys, values, scores = heads * state_size, heads * head_size, heads * _CHUNK
    delta_rule = 5 * groups * state_size + 2 * keys + 7 * values + 6 * scores + 2 * keys * head_size / _CHUNK
    scan = STATE_SPACE_SCAN.moved_bytes(Direction.FORWARD, vector, 1) / (b * length)
    return (b, length, groups, heads, state_size, head_size), scan / delta_rule


STATE_SPACE_SCAN = Operator(
    name="state_space_scan",
    title="chunked scan of Mamba-2 (state-space duality)",
    operator_class=OperatorClass.MEMORY,
    features={
        "b": "samples",
        "l": "tokens",
        "groups": "groups",
        "heads": "heads",
        "state_size": "elements",
        "head_size": "elements",
    },
    # What the kernels of mamba_ssm's `mamba_split_conv1d_scan_combined` move, with its gate, in entries of 16 bit:
    # states between chunks, scores and numbers per head are in fp32. Forward: sums of decays, states of chunks, states
    # handed on, scores, outputs before and after the gate. Backward: the first four again, gradients of gate, states,
    # x, B, C and scores, and of the decays from x once more; by kernel in tests/runtime/operators/test_costs.py.
    costs={
        Direction.FORWARD: cost(
            flops=f"{2 * _MAMBA_CHUNK} b l groups state_size + {_MAMBA_CHUNK} b l heads head_size "
            "+ 4 b l heads state_size head_size",
            elements=f"5 b l heads head_size + {6 / _MAMBA_CHUNK} b l heads state_size head_size "
            f"+ 4 b l groups state_size + {4 * _MAMBA_CHUNK} b l groups + 13 b l heads",
            least="2 b l groups state_size + 3 b l heads head_size",
        ),
        Direction.BACKWARD: cost(
            flops=f"{6 * _MAMBA_CHUNK} b l groups state_size + {3 * _MAMBA_CHUNK} b l heads head_size "
            "+ 10 b l heads state_size head_size",
            elements=f"17 b l heads head_size + {17 / _MAMBA_CHUNK} b l heads state_size head_size "
            f"+ 19 b l groups state_size + {12 * _MAMBA_CHUNK} b l groups + 69 b l heads",
            least="4 b l groups state_size + 5 b l heads head_size",
        ),
    },
    roles=only_role("", "chunked scan of Mamba-2"),
    is_on_request=True,
    substitute=Substitute(operator="gated_delta_rule", asks=_as_delta_rule, within=2.0),
)
