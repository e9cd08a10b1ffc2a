"""The part of a step that a call's time belongs to."""

from enum import StrEnum


class Component(StrEnum):
    """The part of a step that a call's time belongs to; parts of an update have the name of their op."""

    LAYER_FORWARD = "layer_forward"
    LAYER_BACKWARD = "layer_backward"
    ENDS_FORWARD = "ends_forward"  # embedding on the first stage; norm, logits and loss on the last
    ENDS_BACKWARD = "ends_backward"
    SEND_FORWARD = "send_forward"
    SEND_BACKWARD = "send_backward"
    GATHER_FORWARD = "gather_forward"  # ZeRO-3: parameters, while the block before computes
    GATHER_BACKWARD = "gather_backward"
    GATHER_INPUT = "gather_input"  # sequence parallelism: under the product that makes the input's gradient
    OVERLAPPED_FORWARD = "overlapped_forward"  # other collectives that overlap computing
    OVERLAPPED_BACKWARD = "overlapped_backward"
    SCATTER = "scatter"  # ZeRO-2 and 3: gradients, while the next block computes
    ALL_REDUCE = "all_reduce"  # from here on once per update, above once per micro-batch
    TIED_EMBEDDINGS = "tied_embeddings"  # their gradients summed over both ends of the pipeline
    GRADIENT_SCALING = "gradient_scaling"
    GRADIENT_CLIPPING = "gradient_clipping"
    OPTIMIZER = "optimizer"
    GRADIENT_ZEROING = "gradient_zeroing"
    WEIGHT_CAST = "weight_cast"
    ALL_GATHER = "all_gather"


ONCE_PER_UPDATE = frozenset(list(Component)[list(Component).index(Component.ALL_REDUCE) :])
COMPUTED_ONCE = ONCE_PER_UPDATE - {Component.ALL_REDUCE, Component.ALL_GATHER}
"""What the devices of a stage compute between the reduction of gradients and the gather of parameters."""
