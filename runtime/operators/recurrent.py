"""Operators of linear attention and state-space layers: Mamba-2 and gated delta nets.

Chunked scans (arXiv 2405.21060, section 6; 2412.06464, section 3.3): products within chunks of tokens, and a state per
head of key (or state) size × value (or head) size that is handed from chunk to chunk.
"""

from kernelcast.runtime.dataclass import replace
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

_CONVOLUTION = elementwise(
    "causal_convolution",
    "",
    "short causal convolution of every channel over the tokens, with its activation",
    {"b": "samples", "l": "tokens", "channels": "channels"},
    # Four taps; backward reads input and gradient, and writes one.
    forward=(8, 2),
    backward=(16, 3),
    is_optional=True,
)
CAUSAL_CONVOLUTION = replace(_CONVOLUTION, is_on_request=True)

_CHUNK = 64
"""Tokens of a chunk in the kernels that were measured."""

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
    """A delta rule over states as large; by the scan's FLOPs, of the products that both have, over the delta rule's."""
    b, length, groups, heads, state_size, head_size = vector
    both = 2 * _CHUNK * head_size + 4 * state_size * head_size
    own = 4 * _CHUNK * (state_size + head_size) + 6 * state_size * head_size
    return (b, length, groups, heads, state_size, head_size), both / own


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
    costs={
        direction: cost(
            flops=f"{times * 2 * _CHUNK} b l groups state_size + {times * 2 * _CHUNK} b l heads head_size "
            f"+ {times * 4} b l heads state_size head_size",
            elements=f"{times * 2} b l groups state_size + {times * 2} b l heads head_size "
            f"+ {times * 2 / _CHUNK} b l heads state_size head_size",
            least=f"{times * 2} b l groups state_size + {times * 2} b l heads head_size",
        )
        for direction, times in ((Direction.FORWARD, 1), (Direction.BACKWARD, 2))
    },
    roles=only_role("", "chunked scan of Mamba-2"),
    is_on_request=True,
    substitute=Substitute(operator="gated_delta_rule", asks=_as_delta_rule, within=2.0),
)
