"""How a job is laid out: parallel degrees, micro-batches and recomputation, and the nodes it runs on."""

from dataclasses import dataclass
from typing import Literal, get_args

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.model import ModelConfig, require_choice, require_integer

Recompute = Literal["none", "full"]

MAX_DEGREE = 1_000_000
DEFAULT_BUCKET_ENTRIES = 1_260_000_000
"""Entries of a framework's gradient bucket (docs/method.md, A step: the authors' 1.26e9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Layout of one training job (docs/method.md, Symbols).

    `pp` pipeline stages, `mp` tensor-parallel degree, `dp` data-parallel degree; `micro_batch` samples per
    micro-batch (b), `micro_batches` per update (m). With `recompute="full"` the backward pass of every
    encoder runs its forward pass again.

    Raises:
        UsageError: a field has a wrong type or value.
    """

    pp: int
    mp: int
    dp: int
    micro_batch: int
    micro_batches: int
    recompute: Recompute = "none"

    def __post_init__(self) -> None:
        for name in ("pp", "mp", "dp", "micro_batch", "micro_batches"):
            require_integer(name, getattr(self, name), low=1, high=MAX_DEGREE)
        require_choice("recompute", self.recompute, get_args(Recompute))

    @property
    def world_size(self) -> int:
        """Devices of the job: pp · mp · dp."""
        return self.pp * self.mp * self.dp

    @property
    def samples_per_update(self) -> int:
        """Global batch: micro_batch · micro_batches · dp."""
        return self.micro_batch * self.micro_batches * self.dp

    def check(self, model: ModelConfig) -> None:
        """Check that tensor parallelism cuts `model` into whole pieces.

        Raises:
            UsageError: `mp` does not divide the attention heads, the key-value heads or the MLP width.
        """
        for name in ("attention_heads", "kv_heads", "mlp_size"):
            size = getattr(model, name)
            if size % self.mp:
                raise UsageError(
                    f"mp is {self.mp}, expected a divisor of {name} ({size}) of model {model.name}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The nodes that a job runs on: g = `gpus_per_node` devices each.

    Raises:
        UsageError: `gpus_per_node` is not a positive whole number.
    """

    gpus_per_node: int

    def __post_init__(self) -> None:
        require_integer("gpus_per_node", self.gpus_per_node, low=1, high=MAX_DEGREE)
