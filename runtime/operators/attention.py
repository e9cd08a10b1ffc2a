"""Operators between the QKV projection and the attention's output projection, other than matrix products."""

from collections.abc import Mapping

from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.operators.elementwise import elementwise
from kernelcast.runtime.operators.gemm import FLOAT8
from kernelcast.runtime.operators.operator import (
    Direction,
    Operator,
    OperatorClass,
    Substitute,
    Vector,
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

# Where no grouped queries were measured, they are asked as if every query head had keys and values of its own.
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


def _same(vector: Vector) -> tuple[Vector, float]:
    return vector, 1.0


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
        operator="flash_attention", factor=0.81, backward_factor=0.86, asks=_same, within=1.2
    ),
    is_on_request=True,
)


def _causal(vector: Vector) -> tuple[Vector, float]:
    """Causal attention with as many visible keys per query: over sequences twice as long as these are many."""
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
        (Direction.FORWARD, Direction.BACKWARD),
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
        (Direction.FORWARD, Direction.BACKWARD),
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
