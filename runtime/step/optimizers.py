"""Kinds of optimizers: what they keep per parameter, and what an update moves against the one that was measured."""

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.request.fields import OptimizerKind, StateType

STATE_BYTES: dict[StateType, int] = {"float32": 4, "bfloat16": 2, "8bit": 1}
"""Of one entry of a state; the scales of 8-bit blocks, 4 bytes for 256 entries, are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moved:
    """States of a kind, and how often an update reads or writes an entry of one, and of what is in float32 anyway."""

    states: int
    of_states: int
    others: int


# Weights are read and written and the gradient is read once by a kernel that does it all. torch's multi-tensor Adam
# (`_multi_tensor_adam`, with decoupled weight decay) has a kernel for each of: decay (weights), lerp (first moment,
# gradient), mul and addcmul (second moment, gradient), sqrt, div, add (a tensor of their own), addcdiv (weights).
_MOVED: dict[OptimizerKind, _Moved] = {
    "adam_fused": _Moved(states=2, of_states=4, others=3),
    "adam_foreach": _Moved(states=2, of_states=8, others=12),
    "adam_loop": _Moved(states=2, of_states=8, others=12),
    "sgd": _Moved(states=1, of_states=2, others=3),
    "lion": _Moved(states=1, of_states=2, others=3),
}
MEASURED: tuple[OptimizerKind, StateType] = ("adam_fused", "float32")
"""What the operator `adam` is, whoever measured it (docs/method.md, A step)."""


def state_bytes(kind: OptimizerKind, states: StateType, usual: int) -> int:
    """Bytes of a parameter's states; one in "float32" takes `usual` ones."""
    return _MOVED[kind].states * (usual if states == "float32" else STATE_BYTES[states])


def moved_bytes(kind: OptimizerKind, states: StateType) -> int:
    """Bytes that an update of one float32 parameter reads and writes.

    >>> moved_bytes("adam_fused", "float32"), moved_bytes("adam_foreach", "float32")
    (28, 80)
    """
    moved = _MOVED[kind]
    return STATE_BYTES[states] * moved.of_states + 4 * moved.others


def moved_share(kind: OptimizerKind, states: StateType) -> float:
    """`moved_bytes` as a multiple of the measured optimizer's."""
    return moved_bytes(kind, states) / moved_bytes(*MEASURED)
