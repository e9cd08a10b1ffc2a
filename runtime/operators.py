"""The operators of a training step: one table that collector, train and runtime share (the paper's Table I).

Standard library only. A row says what an operator is called, which features make up its workload vector and how
they follow from a `Shape`, and how many FLOPs and elements moved a workload costs. What is measured, fitted and asked
therefore cannot drift apart.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.operator_row import Cost, Direction, Operator, OperatorClass, Term, cost
from kernelcast.runtime.shape import Shape

__all__ = ["OPERATORS", "Cost", "Direction", "Operator", "OperatorClass", "Shape", "Term", "operator"]

_F, _B, _1 = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE
_GEMM = {"m": "rows", "k": "columns in", "n": "columns out"}
_HIDDEN = {"b": "samples", "l": "tokens", "d": "elements"}
_SCORES = {"b": "samples", "heads": "heads", "l_query": "tokens", "l_key": "tokens"}
_LAYOUT = {"entries": "elements", "nodes": "nodes", "gpus_per_node": "devices"}


def _linear(name: str, paper_name: str, title: str, workload: Callable[[Shape], tuple[int, ...]]) -> Operator:
    # Backward is two products (input and weight gradient), and the weight gradient is added to what is there.
    return Operator(
        name=name,
        paper_name=paper_name,
        title=title,
        operator_class=OperatorClass.COMPUTE,
        features=_GEMM,
        workload_of=workload,
        costs={
            _F: cost(flops="2 m k n", elements="1 m k + 1 k n + 1 m n"),
            _B: cost(flops="4 m k n", elements="2 m k + 4 k n + 2 m n"),
        },
    )


def _elementwise(
    name: str,
    paper_name: str,
    title: str,
    features: Mapping[str, str],
    workload: Callable[[Shape], tuple[int, ...]],
    *,
    forward: tuple[float, float],
    backward: tuple[float, float],
) -> Operator:
    """Memory-bound row whose (FLOPs, elements) per direction are multiples of the product of its features."""
    product = " ".join(features)
    costs = {
        direction: cost(flops=f"{flops} {product}", elements=f"{elements} {product}")
        for direction, (flops, elements) in ((_F, forward), (_B, backward))
    }
    return Operator(
        name=name,
        paper_name=paper_name,
        title=title,
        operator_class=OperatorClass.MEMORY,
        features=features,
        workload_of=workload,
        costs=costs,
    )


def _collective(
    name: str, paper_name: str, title: str, collective: str, entries: Callable[[Shape], int], elements: str
) -> Operator:
    return Operator(
        name=name,
        paper_name=paper_name,
        title=title,
        operator_class=OperatorClass.COMMUNICATION,
        features=_LAYOUT,
        workload_of=lambda s: (entries(s), s.nodes, s.gpus_per_node),
        costs={_1: cost(flops="", elements=elements)},
        collective=collective,
    )


def _optimizer(role: str) -> Operator:
    # Fused Adam reads parameter, gradient and both moments and writes all but the gradient. The paper's vector is
    # [mp, d, encoders]; parameters follow from it, and also hold for other vocabularies and MLP widths.
    return Operator(
        name=f"optimizer_{role}_stage",
        paper_name="Optimizer",
        title=f"fused Adam step over the parameters of the {role} stage",
        operator_class=OperatorClass.OPTIMIZER,
        features={"parameters": "elements", "encoders": "encoders"},
        workload_of=lambda s: (s.stage_parameters, s.stage_encoders),
        costs={_1: cost(flops="14 parameters", elements="7 parameters")},
    )


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
    _elementwise(
        "layer_norm",
        "LayerNorm",
        "layer normalisation with weight and bias",
        _HIDDEN,
        lambda s: (s.micro_batch, s.sequence_length, s.hidden_size),
        forward=(8, 2),
        backward=(14, 4),
    ),
    _elementwise(
        "rms_norm",
        "RMSNorm",
        "root-mean-square normalisation with weight",
        _HIDDEN,
        lambda s: (s.micro_batch, s.sequence_length, s.hidden_size),
        forward=(4, 2),
        backward=(10, 4),
    ),
    _linear(
        "qkv_linear",
        "Linear1",
        "projection to queries, keys and values",
        lambda s: (
            s.tokens,
            s.hidden_size,
            (s.attention_heads + 2 * s.kv_heads) * s.head_size // s.tensor_parallel,
        ),
    ),
    _elementwise(
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
    _elementwise(
        "causal_mask_fill",
        "Fillmask",
        "causal mask filled into the scores",
        _SCORES,
        lambda s: (s.micro_batch, s.local_heads, s.sequence_length, s.sequence_length),
        forward=(0, 2),
        backward=(0, 2),
    ),
    _elementwise(
        "softmax",
        "Softmax",
        "softmax over the keys, unfused",
        _SCORES,
        lambda s: (s.micro_batch, s.local_heads, s.sequence_length, s.sequence_length),
        forward=(5, 2),
        backward=(4, 3),
    ),
    _elementwise(
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
    _linear(
        "attention_output_linear",
        "Linear2",
        "attention output projection",
        lambda s: (s.tokens, s.attention_width // s.tensor_parallel, s.hidden_size),
    ),
    _linear(
        "mlp_up_linear",
        "Linear3",
        "MLP up projection",
        lambda s: (s.tokens, s.hidden_size, s.local_mlp_size),
    ),
    _elementwise(
        "gelu",
        "Glue",
        "GeLU activation",
        {"b": "samples", "l": "tokens", "width": "elements"},
        lambda s: (s.micro_batch, s.sequence_length, s.local_mlp_size),
        forward=(8, 2),
        backward=(13, 3),
    ),
    _elementwise(
        "swiglu",
        "SwiGLU",
        "SiLU-gated linear unit over gate and up halves",
        {"b": "samples", "l": "tokens", "width": "elements"},
        lambda s: (s.micro_batch, s.sequence_length, s.local_mlp_size),
        forward=(6, 3),
        backward=(10, 5),
    ),
    _linear(
        "mlp_gate_up_linear",
        "Linear3 (SwiGLU)",
        "MLP gate and up projections as one product",
        lambda s: (s.tokens, s.hidden_size, 2 * s.local_mlp_size),
    ),
    _linear(
        "mlp_down_linear",
        "Linear4",
        "MLP down projection",
        lambda s: (s.tokens, s.local_mlp_size, s.hidden_size),
    ),
    _elementwise(
        "residual_add",
        "residual add",
        "residual addition; backward adds the gradients of the two branches",
        _HIDDEN,
        lambda s: (s.micro_batch, s.sequence_length, s.hidden_size),
        forward=(1, 3),
        backward=(1, 3),
    ),
    _linear(
        "logits_linear",
        "Final_Linear",
        "output projection to the vocabulary",
        lambda s: (s.tokens, s.hidden_size, s.local_vocabulary),
    ),
    _elementwise(
        "cross_entropy",
        "Parallel Cross-entropy",
        "cross-entropy over the local vocabulary shard",
        {"b": "samples", "l": "tokens", "vocabulary": "columns"},
        lambda s: (s.micro_batch, s.sequence_length, s.local_vocabulary),
        forward=(5, 3),
        backward=(3, 3),
    ),
    _collective(
        "mp_all_reduce",
        "MP_All-reduce",
        "activations summed across the tensor-parallel group",
        "all_reduce",
        lambda s: s.tokens * s.hidden_size,
        "2 entries",
    ),
    _collective(
        "mp_all_gather",
        "MP_All-gather",
        "sequence shards gathered across the tensor-parallel group; entries are one process's shard",
        "all_gather",
        lambda s: -(-s.tokens * s.hidden_size // s.tensor_parallel),
        "1 entries nodes gpus_per_node",
    ),
    _collective(
        "mp_reduce_scatter",
        "MP_Reduce-scatter",
        "activations summed and split along the sequence; entries are one process's input",
        "reduce_scatter",
        lambda s: s.tokens * s.hidden_size,
        "1 entries",
    ),
    _collective(
        "dp_all_reduce",
        "DP_All-reduce",
        "gradients summed across the data-parallel group",
        "all_reduce",
        lambda s: s.stage_parameters,
        "2 entries",
    ),
    _collective(
        "dp_all_gather",
        "DP_All-gather",
        "updated parameters gathered across the data-parallel group (ZeRO-1); entries are one process's shard",
        "all_gather",
        lambda s: -(-s.stage_parameters // s.data_parallel),
        "1 entries nodes gpus_per_node",
    ),
    _collective(
        "dp_reduce_scatter",
        "DP_Reduce-scatter",
        "gradients summed and split across the data-parallel group; entries are one process's input",
        "reduce_scatter",
        lambda s: s.stage_parameters,
        "1 entries",
    ),
    _collective(
        "pp_p2p",
        "PP_P2P",
        "activations or their gradients sent to the neighbouring stage",
        "point_to_point",
        lambda s: s.tokens * s.hidden_size // s.tensor_parallel,
        "1 entries",
    ),
    _optimizer("first"),
    _optimizer("middle"),
    _optimizer("last"),
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
