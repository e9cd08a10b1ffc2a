"""The operators of a training step: one table that collector, train and runtime share (the paper's Table I).

What a step runs beside them is in supplementary_operators.py.

Standard library only. A row says what an operator is called, which features make up its workload vector and how
they follow from a `Shape`, and how many FLOPs and elements moved a workload costs. What is measured, fitted and asked
therefore cannot drift apart.
"""

from collections.abc import Mapping
from types import MappingProxyType

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.operator_kinds import collective, elementwise, linear, optimizer
from kernelcast.runtime.operator_row import Cost, Direction, Operator, OperatorClass, Term, cost
from kernelcast.runtime.shape import Shape
from kernelcast.runtime.supplementary_operators import SUPPLEMENTARY

__all__ = ["OPERATORS", "Cost", "Direction", "Operator", "OperatorClass", "Shape", "Term", "operator"]

_F, _B = Direction.FORWARD, Direction.BACKWARD
_HIDDEN = {"b": "samples", "l": "tokens", "d": "elements"}
_SCORES = {"b": "samples", "heads": "heads", "l_query": "tokens", "l_key": "tokens"}

_TABLE = (
    Operator(
        name="embedding",
        paper_name="Embedding",
        title="vocabulary-parallel token embedding",
        operator_class=OperatorClass.MEMORY,
        features={"tokens": "tokens", "vocabulary": "rows", "d": "elements"},
        workload_of=lambda s: (s.tokens, s.local_vocabulary, s.hidden_size),
        # The dense gradient is zero-filled, scattered into, and added to the accumulated one.
        costs={
            _F: cost(flops="", elements="2 tokens d"),
            _B: cost(flops="1 tokens d + 1 vocabulary d", elements="3 tokens d + 4 vocabulary d"),
        },
    ),
    elementwise(
        "layer_norm",
        "LayerNorm",
        "layer normalisation with weight and bias",
        _HIDDEN,
        lambda s: (s.micro_batch, s.sequence_length, s.hidden_size),
        forward=(8, 2),
        backward=(14, 4),
    ),
    elementwise(
        "rms_norm",
        "RMSNorm",
        "root-mean-square normalisation with weight",
        _HIDDEN,
        lambda s: (s.micro_batch, s.sequence_length, s.hidden_size),
        forward=(4, 2),
        backward=(10, 4),
    ),
    linear(
        "qkv_linear",
        "Linear1",
        "projection to queries, keys and values",
        lambda s: (
            s.tokens,
            s.hidden_size,
            s.qkv_width // s.tensor_parallel,
        ),
    ),
    elementwise(
        "rope",
        "RoPE",
        "rotary position embedding of queries and keys",
        {"b": "samples", "l": "tokens", "heads": "heads", "head_size": "elements"},
        lambda s: (s.micro_batch, s.sequence_length, s.local_heads, s.head_size),
        forward=(6, 4),
        backward=(6, 4),
    ),
    Operator(
        name="attention_scores",
        paper_name="QK^T",
        title="attention scores, queries × keys",
        operator_class=OperatorClass.COMPUTE,
        features={"batch_heads": "heads", "l_query": "tokens", "head_size": "elements", "l_key": "tokens"},
        workload_of=lambda s: (
            s.micro_batch * s.local_heads,
            s.sequence_length,
            s.head_size,
            s.sequence_length,
        ),
        costs={
            _F: cost(
                flops="2 batch_heads l_query head_size l_key",
                elements="1 batch_heads l_query head_size + 1 batch_heads l_key head_size "
                "+ 1 batch_heads l_query l_key",
            ),
            _B: cost(
                flops="4 batch_heads l_query head_size l_key",
                elements="2 batch_heads l_query head_size + 2 batch_heads l_key head_size "
                "+ 2 batch_heads l_query l_key",
            ),
        },
    ),
    elementwise(
        "causal_mask_fill",
        "Fillmask",
        "causal mask filled into the scores",
        _SCORES,
        lambda s: (s.micro_batch, s.local_heads, s.sequence_length, s.sequence_length),
        forward=(0, 2),
        backward=(0, 2),
    ),
    elementwise(
        "softmax",
        "Softmax",
        "softmax over the keys, unfused",
        _SCORES,
        lambda s: (s.micro_batch, s.local_heads, s.sequence_length, s.sequence_length),
        forward=(5, 2),
        backward=(4, 3),
    ),
    elementwise(
        "fused_causal_softmax",
        "Fused Softmax",
        "scale, causal mask and softmax in one kernel",
        {"batch_heads": "heads", "l_query": "tokens", "l_key": "tokens"},
        lambda s: (s.micro_batch * s.local_heads, s.sequence_length, s.sequence_length),
        forward=(6, 2),
        backward=(5, 3),
    ),
    Operator(
        name="attention_values",
        paper_name="·V",
        title="attention weights × values",
        operator_class=OperatorClass.COMPUTE,
        features={"batch_heads": "heads", "l_query": "tokens", "l_key": "tokens", "head_size": "elements"},
        workload_of=lambda s: (
            s.micro_batch * s.local_heads,
            s.sequence_length,
            s.sequence_length,
            s.head_size,
        ),
        costs={
            _F: cost(
                flops="2 batch_heads l_query l_key head_size",
                elements="1 batch_heads l_query l_key + 1 batch_heads l_key head_size "
                "+ 1 batch_heads l_query head_size",
            ),
            _B: cost(
                flops="4 batch_heads l_query l_key head_size",
                elements="2 batch_heads l_query l_key + 2 batch_heads l_key head_size "
                "+ 2 batch_heads l_query head_size",
            ),
        },
    ),
    Operator(
        name="flash_attention",
        paper_name="Flash Attention",
        title="fused causal attention",
        operator_class=OperatorClass.COMPUTE,
        features={"b": "samples", "l": "tokens", "heads": "heads", "head_size": "elements"},
        workload_of=lambda s: (s.micro_batch, s.sequence_length, s.local_heads, s.head_size),
        # Two products forward and five backward, half of each masked away (arXiv 2205.14135, section 3 and app. B).
        costs={
            _F: cost(flops="2 b l l heads head_size", elements="4 b l heads head_size"),
            _B: cost(flops="5 b l l heads head_size", elements="8 b l heads head_size"),
        },
    ),
    linear(
        "attention_output_linear",
        "Linear2",
        "attention output projection",
        lambda s: (s.tokens, s.attention_width // s.tensor_parallel, s.hidden_size),
    ),
    linear(
        "mlp_up_linear",
        "Linear3",
        "MLP up projection",
        lambda s: (s.tokens, s.hidden_size, s.local_mlp_size),
    ),
    elementwise(
        "gelu",
        "Glue",
        "GeLU activation",
        {"b": "samples", "l": "tokens", "width": "elements"},
        lambda s: (s.micro_batch, s.sequence_length, s.local_mlp_size),
        forward=(8, 2),
        backward=(13, 3),
    ),
    elementwise(
        "swiglu",
        "SwiGLU",
        "SiLU-gated linear unit over gate and up halves",
        {"b": "samples", "l": "tokens", "width": "elements"},
        lambda s: (s.micro_batch, s.sequence_length, s.local_mlp_size),
        forward=(6, 3),
        backward=(10, 5),
    ),
    linear(
        "mlp_gate_up_linear",
        "Linear3 (SwiGLU)",
        "MLP gate and up projections as one product",
        lambda s: (s.tokens, s.hidden_size, 2 * s.local_mlp_size),
    ),
    linear(
        "mlp_down_linear",
        "Linear4",
        "MLP down projection",
        lambda s: (s.tokens, s.local_mlp_size, s.hidden_size),
    ),
    elementwise(
        "residual_add",
        "residual add",
        "residual addition; backward adds the gradients of the two branches",
        _HIDDEN,
        lambda s: (s.micro_batch, s.sequence_length, s.hidden_size),
        forward=(1, 3),
        backward=(1, 3),
    ),
    linear(
        "logits_linear",
        "Final_Linear",
        "output projection to the vocabulary",
        lambda s: (s.tokens, s.hidden_size, s.local_vocabulary),
    ),
    elementwise(
        "cross_entropy",
        "Parallel Cross-entropy",
        "cross-entropy over the local vocabulary shard",
        {"b": "samples", "l": "tokens", "vocabulary": "columns"},
        lambda s: (s.micro_batch, s.sequence_length, s.local_vocabulary),
        forward=(5, 3),
        backward=(3, 3),
    ),
    collective(
        "mp_all_reduce",
        "MP_All-reduce",
        "activations summed across the tensor-parallel group",
        "all_reduce",
        lambda s: s.tokens * s.hidden_size,
        "2 entries",
    ),
    collective(
        "mp_all_gather",
        "MP_All-gather",
        "sequence shards gathered across the tensor-parallel group; entries are one process's shard",
        "all_gather",
        lambda s: -(-s.tokens * s.hidden_size // s.tensor_parallel),
        "1 entries nodes gpus_per_node",
    ),
    collective(
        "mp_reduce_scatter",
        "MP_Reduce-scatter",
        "activations summed and split along the sequence; entries are one process's input",
        "reduce_scatter",
        lambda s: s.tokens * s.hidden_size,
        "1 entries",
    ),
    collective(
        "dp_all_reduce",
        "DP_All-reduce",
        "gradients summed across the data-parallel group",
        "all_reduce",
        lambda s: s.stage_parameters,
        "2 entries",
    ),
    collective(
        "dp_all_gather",
        "DP_All-gather",
        "updated parameters gathered across the data-parallel group (ZeRO-1); entries are one process's shard",
        "all_gather",
        lambda s: -(-s.stage_parameters // s.data_parallel),
        "1 entries nodes gpus_per_node",
    ),
    collective(
        "dp_reduce_scatter",
        "DP_Reduce-scatter",
        "gradients summed and split across the data-parallel group; entries are one process's input",
        "reduce_scatter",
        lambda s: s.stage_parameters,
        "1 entries",
    ),
    collective(
        "pp_p2p",
        "PP_P2P",
        "activations or their gradients sent to the neighbouring stage",
        "point_to_point",
        lambda s: s.tokens * s.hidden_size // s.tensor_parallel,
        "1 entries",
    ),
    optimizer("first"),
    optimizer("middle"),
    optimizer("last"),
    *SUPPLEMENTARY,
)

OPERATORS: Mapping[str, Operator] = MappingProxyType({operator.name: operator for operator in _TABLE})
"""Every operator by name, in the order of docs/method.md, Operators."""


def operator(name: str) -> Operator:
    """Look an operator up by name.

    Raises:
        UsageError: no operator has that name.
    """
    try:
        return OPERATORS[name]
    except KeyError:
        raise UsageError(f"operator {name!r} is unknown; known are {', '.join(OPERATORS)}") from None
