"""Matrix products: one law for every linear, one for the batched products of unfused attention."""

from kernelcast.runtime.operators.operator import Direction, Operator, OperatorClass, cost, roles

GEMM = Operator(
    name="gemm",
    title="matrix product [m, k] × [k, n] of a linear, without its bias",
    operator_class=OperatorClass.COMPUTE,
    features={"m": "rows", "k": "columns in", "n": "columns out"},
    # The weight gradient is added to what is there: kn is written once, then read twice and written.
    costs={
        Direction.FORWARD: cost(flops="2 m k n", elements="1 m k + 1 k n + 1 m n"),
        Direction.INPUT_GRADIENT: cost(flops="2 m k n", elements="1 m k + 1 k n + 1 m n"),
        Direction.WEIGHT_GRADIENT: cost(
            flops="2 m k n", elements="1 m k + 3 k n + 1 m n", least="1 m k + 1 k n + 1 m n"
        ),
        Direction.BACKWARD: cost(
            flops="4 m k n", elements="2 m k + 4 k n + 2 m n", least="2 m k + 2 k n + 1 m n"
        ),
    },
    sums={Direction.BACKWARD: (Direction.INPUT_GRADIENT, Direction.WEIGHT_GRADIENT)},
    roles=roles(
        ("qkv", "Linear1", "projection to queries, keys and values"),
        ("attention_output", "Linear2", "attention output projection"),
        ("mlp_up", "Linear3", "MLP up projection"),
        ("mlp_gate_up", "Linear3 (SwiGLU)", "MLP gate and up projections as one product"),
        ("mlp_down", "Linear4", "MLP down projection"),
        ("logits", "Final_Linear", "output projection to the vocabulary"),
    ),
)

BATCHED_GEMM = Operator(
    name="batched_gemm",
    title="a matrix product [m, k] × [k, n] per head of every sample",
    operator_class=OperatorClass.COMPUTE,
    features={"batch": "heads", "m": "rows", "k": "columns in", "n": "columns out"},
    costs={
        Direction.FORWARD: cost(flops="2 batch m k n", elements="1 batch m k + 1 batch k n + 1 batch m n"),
        Direction.BACKWARD: cost(
            flops="4 batch m k n",
            elements="2 batch m k + 2 batch k n + 2 batch m n",
            least="2 batch m k + 2 batch k n + 1 batch m n",
        ),
    },
    roles=roles(
        ("attention_scores", "QK^T", "attention scores, queries × keys"),
        ("attention_values", "·V", "attention weights × values"),
    ),
)
