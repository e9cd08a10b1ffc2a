"""Operators that a step runs and the paper's Table I does not list (docs/method.md, Operators).

For one that a bundle lacks, such as one of imported data, another operator answers (substitutes.py), or it is left out
of the sum (left_out.py); either is said. The grouped ones are then asked as if there were as many key-value heads as
query heads.
"""

from kernelcast.runtime.operator_kinds import collective, elementwise
from kernelcast.runtime.operator_row import Direction, Operator, OperatorClass, cost
from kernelcast.runtime.shape import Shape

_F, _B, _1 = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE
_ROWS = {"rows": "tokens", "columns": "elements"}
_GROUPED = {"b": "samples", "l": "tokens", "heads": "heads", "kv_heads": "heads", "head_size": "elements"}


def _grouped(s: Shape) -> tuple[int, ...]:
    return s.micro_batch, s.sequence_length, s.local_heads, s.local_kv_heads, s.head_size


def _on_gradients(name: str, title: str, multiples: tuple[int, int]) -> Operator:
    """Once per update, over the buffer of a stage's gradients; `multiples` of it are (FLOPs, elements)."""
    flops, elements = multiples
    return Operator(
        name=name,
        paper_name="",
        title=title,
        operator_class=OperatorClass.OPTIMIZER,
        features={"parameters": "elements"},
        workload_of=lambda s: (s.stage_parameters,),
        costs={_1: cost(flops=f"{flops} parameters" if flops else "", elements=f"{elements} parameters")},
        supplementary=True,
    )


SUPPLEMENTARY = (
    elementwise(
        "bias_add",
        "",
        "bias added to a linear's product; backward sums its gradient over the rows",
        _ROWS,
        lambda s: (s.tokens, s.local_mlp_size),
        forward=(1, 2),
        backward=(1, 1),
        supplementary=True,
    ),
    elementwise(
        "qkv_split",
        "",
        "gradients of queries, keys and values put side by side; forward they are views of one product",
        _ROWS,
        lambda s: (s.tokens, s.qkv_width // s.tensor_parallel),
        forward=None,
        backward=(0, 2),
        supplementary=True,
    ),
    elementwise(
        "embedding_mask",
        "",
        "rows of tokens that another vocabulary shard holds set to zero",
        _ROWS,
        lambda s: (s.tokens, s.hidden_size),
        forward=(0, 2),
        backward=(0, 2),
        supplementary=True,
    ),
    Operator(
        name="grouped_rope",
        paper_name="",
        title="rotary position embedding of queries and of fewer keys",
        operator_class=OperatorClass.MEMORY,
        features=_GROUPED,
        workload_of=_grouped,
        costs=dict.fromkeys(
            (_F, _B),
            cost(
                flops="3 b l heads head_size + 3 b l kv_heads head_size",
                elements="2 b l heads head_size + 2 b l kv_heads head_size",
            ),
        ),
        supplementary=True,
    ),
    Operator(
        name="grouped_flash_attention",
        paper_name="",
        title="fused causal attention, each key-value head serving a group of queries",
        operator_class=OperatorClass.COMPUTE,
        features=_GROUPED,
        workload_of=_grouped,
        # As flash_attention; keys and values, and their gradients, are fewer.
        costs={
            _F: cost(
                flops="2 b l l heads head_size",
                elements="2 b l heads head_size + 2 b l kv_heads head_size",
            ),
            _B: cost(
                flops="5 b l l heads head_size",
                elements="4 b l heads head_size + 4 b l kv_heads head_size",
            ),
        },
        supplementary=True,
    ),
    _on_gradients("gradient_zero", "gradients of a stage set to zero before its first micro-batch", (0, 1)),
    _on_gradients("gradient_clip", "L2 norm of a stage's gradients, which are then scaled", (3, 3)),
    collective(
        "ep_all_to_all",
        "",
        "tokens sent to their experts across the expert-parallel group; entries are one process's input",
        "all_to_all",
        lambda s: s.tokens * s.hidden_size,
        "2 entries",
        supplementary=True,
    ),
)
