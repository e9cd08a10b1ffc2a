"""Operators that wait for memory: norms, activations, additions, masks, embedding and loss."""

from collections.abc import Mapping

from kernelcast.runtime.operators.operator import (
    BOTH_PASSES,
    Direction,
    Operator,
    OperatorClass,
    Substitute,
    cost,
    only_role,
    roles,
)

_HIDDEN = {"b": "samples", "l": "tokens", "d": "elements"}
_WIDTH = {"b": "samples", "l": "tokens", "width": "elements"}
_ROWS = {"rows": "tokens", "columns": "elements"}


def elementwise(
    name: str,
    paper_name: str,
    title: str,
    features: Mapping[str, str],
    *,
    forward: tuple[float, float] | None,
    backward: tuple[float, float] | None,
    least: tuple[float | None, float | None] = (None, None),
    is_optional: bool = False,
    is_on_request: bool = False,
    alike: str = "residual_add",
    kernels: tuple[int, int] = (1, 1),
    apart: tuple[tuple[str, str, str], ...] = (),
) -> Operator:
    """Memory-bound row whose (FLOPs, elements) per direction are multiples of the product of its features.

    `least` are the multiples of the elements that no kernel can do without, forward and backward, where they are fewer.

    With `forward` or `backward` None, that pass runs no kernel. If a bundle lacks an optional operator, `alike` answers
    for it, an operator that moves the same bytes: both are memory-bound, and imported data rarely has the one and
    always the other. `kernels` counts kernels of the forward and the backward pass, `apart` are roles that are measured
    apart from the usual one.
    """
    product = " ".join(features)
    return Operator(
        name=name,
        title=title,
        operator_class=OperatorClass.MEMORY,
        features=features,
        costs={
            direction: cost(
                flops=f"{multiples[0]} {product}",
                elements=f"{multiples[1]} {product}",
                least=f"{multiples[1] if fewest is None else fewest} {product}",
            )
            for direction, multiples, fewest in (
                (Direction.FORWARD, forward, least[0]),
                (Direction.BACKWARD, backward, least[1]),
            )
            if multiples is not None
        },
        roles=roles(("", paper_name, title), *apart),
        is_elementwise=True,
        is_optional=is_optional,
        is_on_request=is_on_request,
        kernels=dict(zip((Direction.FORWARD, Direction.BACKWARD), kernels, strict=True)),
        substitute=Substitute(operator=alike, alike=True) if is_optional or alike != "residual_add" else None,
    )


EMBEDDING = Operator(
    name="embedding",
    title="vocabulary-parallel token embedding",
    operator_class=OperatorClass.MEMORY,
    features={"tokens": "tokens", "vocabulary": "rows", "d": "elements"},
    # The dense gradient is zero-filled, scattered into, and added to the accumulated one.
    costs={
        Direction.FORWARD: cost(
            elements="2 tokens d", least="1 tokens d"
        ),  # the same row may be read from a cache
        Direction.BACKWARD: cost(
            flops="1 tokens d + 1 vocabulary d",
            elements="3 tokens d + 4 vocabulary d",
            least="1 vocabulary d",
        ),
    },
    roles=only_role("Embedding", "vocabulary-parallel token embedding"),
)

# fmt: off
LAYER_NORM = elementwise("layer_norm", "LayerNorm", "layer normalisation with weight and bias", _HIDDEN,
                         forward=(8, 2), backward=(14, 4), least=(None, 3))
RMS_NORM = elementwise("rms_norm", "RMSNorm", "root-mean-square normalisation with weight", _HIDDEN,
                       forward=(4, 2), backward=(10, 4), least=(None, 3), alike="layer_norm")

GELU = elementwise("gelu", "Glue", "GeLU activation", _WIDTH, forward=(8, 2), backward=(13, 3))
SWIGLU = elementwise("swiglu", "SwiGLU", "SiLU-gated linear unit over gate and up halves", _WIDTH,
                     forward=(6, 3), backward=(10, 5), alike="gelu")

# Without a compiler each line of a model is a kernel of its own (torchtitan/models/norms.py). Entries of 16 bit: to
# fp32 (3), square (4), mean (2), scale (4), back to 16 bit (3), weight (2); backward the weight (2 + 3 + 1), to fp32
# (3), scale and its gradient (4 + 6 + 2), mean (2), square (4 + 4 + 6), sum of both gradients (6), back (3).
# A cache may hold what lies between two kernels.
EAGER_RMS_NORM = elementwise("eager_rms_norm", "", "root-mean-square normalisation in fp32 by separate kernels",
                             _HIDDEN, forward=(4, 18), backward=(10, 46), least=(2, 3), kernels=(8, 16),
                             is_optional=True, is_on_request=True)
# SiLU (2) and product (3); backward both gradients of the product (3 + 3) and SiLU's (3).
EAGER_SWIGLU = elementwise("eager_swiglu", "", "SiLU-gated linear unit by separate kernels", _WIDTH,
                           forward=(6, 5), backward=(10, 9), least=(3, 5), kernels=(2, 3),
                           is_optional=True, is_on_request=True)

RESIDUAL_ADD = elementwise("residual_add", "residual add",
                           "residual addition; backward adds the gradients of the two branches", _HIDDEN,
                           forward=(1, 3), backward=(1, 3))
BIAS_ADD = elementwise("bias_add", "", "bias added to a linear's product; backward sums its gradient over the rows",
                       _ROWS, forward=(1, 2), backward=(1, 1), is_optional=True)
# The mask is a byte per element, half of one of 16 bits.
DROPOUT = elementwise("dropout", "", "elements set to zero at random, the others scaled; the backward pass applies the "
                      "mask that is kept", _ROWS, forward=(2, 2.5), backward=(1, 2.5), is_optional=True)
COPY = elementwise("copy", "", "elements read once and written once: put into another tensor or another order", _ROWS,
                   forward=(0, 2), backward=(0, 2), is_optional=True,
                   apart=(("padding", "", "rows of experts with the padding that products in 8 bit take"),))

EMBEDDING_MASK = elementwise("embedding_mask", "", "rows of tokens that another vocabulary shard holds set to zero",
                             _ROWS, forward=(0, 2), backward=(0, 2), least=(0, 0), is_optional=True)
CROSS_ENTROPY = elementwise("cross_entropy", "Parallel Cross-entropy", "cross-entropy over the local vocabulary shard",
                            {"b": "samples", "l": "tokens", "vocabulary": "columns"},
                            forward=(5, 3), backward=(3, 3), least=(1, 2))

# Kernels of Megatron-core without a fused router (moe_utils.py), counted: softmax, top-k of groups and of experts with
# their masks and scatters (22), tokens over an expert's capacity (9), auxiliary loss (15).
ROUTER = elementwise("router", "", "scores of a token's experts, the best of them, the loss that balances them, and "
                     "the order of the rows", {"tokens": "tokens", "experts": "experts"},
                     forward=(10, 6), backward=(10, 6), least=(1, 1), kernels=(46, 20), is_optional=True)
# fmt: on

_BY_EXPERT = {"tokens": "tokens", "experts_per_token": "experts", "d": "elements"}
_ROWS_BY_EXPERT = "1 tokens d + 1 tokens experts_per_token d"

# TransformerEngine's fused kernels, sorting and putting back together, forward 371 µs and backward 364 µs of
# DeepSeek-V2's tokens on a B200 (SimuMax, `permute_fwd` and `permute_bwd`, without their launches); residual additions
# that move as much take 88 µs there.
_ROWS_MOVED = Substitute(operator="residual_add", alike=True, factor=4.2)


def _by_expert(name: str, title: str, shown_role: str, operations: int) -> Operator:
    return Operator(
        name=name,
        title=title,
        operator_class=OperatorClass.MEMORY,
        features=_BY_EXPERT,
        costs=dict.fromkeys(
            BOTH_PASSES,
            cost(flops=f"{operations} tokens experts_per_token d", elements=_ROWS_BY_EXPERT),
        ),
        roles=only_role("", shown_role),
        is_optional=True,
        substitute=_ROWS_MOVED,
    )


PERMUTE = _by_expert(
    "permute",
    "tokens copied into a row for each of their experts, in the order of the experts; backward sums the rows",
    "tokens sorted by expert",
    operations=1,
)
UNPERMUTE = _by_expert(
    "unpermute",
    "results of a token's experts weighted and summed; backward copies the gradient into their rows",
    "results of experts put back in the order of the tokens and summed",
    operations=2,
)
