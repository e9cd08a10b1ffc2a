"""Operators of linear attention and state-space layers: Mamba-2 and gated delta nets.

Chunked scans (arXiv 2405.21060, section 6; 2412.06464, section 3.3): products within chunks of tokens, and a state per
head of key (or state) size × value (or head) size that is handed from chunk to chunk.
"""

from kernelcast.runtime.operators.elementwise import elementwise
from kernelcast.runtime.operators.operator import (
    Direction,
    Operator,
    OperatorClass,
    Substitute,
    Vector,
    cost,
    only_role,
)

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
    """A delta rule over states as large, times what the scan's kernels move over what the delta rule's move.

    Both are chains of Triton kernels that write what the next one reads. Entries per token that the delta rule's move
    (flash-linear-attention's `chunk_gated_delta_rule_fwd`): scores of keys in fp32, their inverse, keys and values
    times it, states, new values, results.
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
