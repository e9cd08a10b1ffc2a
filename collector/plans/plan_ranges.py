"""The content of a plan: ranges of shapes, limits on them, and the messages of collectives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.load import Load
from kernelcast.runtime.request.model import ModelConfig

OF_MODELS = (
    "hidden_size", "head_size", "attention_heads", "mlp_ratio", "vocabulary_size", "queries_per_kv_head", "experts",
    "experts_per_token", "expert_ratio", "kv_rank", "sliding_window",
)  # fmt: skip
"""Ranges of model sizes, which a plan with named models must not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Values that shapes are drawn from, a tuple each; see docs/plans.md.

    Heads are given by either `head_size` or `attention_heads`. `mlp_ratio` times the hidden size is the MLP's width,
    `expert_ratio` times the hidden size an expert's; `queries_per_kv_head` above 1 is grouped-query attention;
    `kv_rank` is the low rank of keys and values in latent attention. The plan's models lack features without a range.
    """

    tensor_parallel: tuple[int, ...]
    micro_batch: tuple[int, ...]
    sequence_length: tuple[int, ...]
    hidden_size: tuple[int, ...] = ()
    head_size: tuple[int, ...] = ()
    attention_heads: tuple[int, ...] = ()
    mlp_ratio: tuple[float, ...] = ()
    vocabulary_size: tuple[int, ...] = ()
    layers: tuple[int, ...]
    queries_per_kv_head: tuple[int, ...] = ()
    experts: tuple[int, ...] = ()
    experts_per_token: tuple[int, ...] = ()
    expert_ratio: tuple[float, ...] = ()
    expert_parallel: tuple[int, ...] = ()
    context_parallel: tuple[int, ...] = ()
    kv_rank: tuple[int, ...] = ()
    sliding_window: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.hidden_size:
            return  # the plan names its models
        if missing := [
            name for name in ("hidden_size", "mlp_ratio", "vocabulary_size") if not getattr(self, name)
        ]:
            raise UsageError(f"ranges.{missing[0]} is missing")
        if bool(self.head_size) == bool(self.attention_heads):
            found = "both" if self.head_size else "neither"
            raise UsageError(f"ranges has {found} of head_size and attention_heads, expected one of them")
        if (
            0
            < sum(map(bool, of_experts := (self.experts, self.experts_per_token, self.expert_ratio)))
            < len(of_experts)
        ):
            raise UsageError(
                "ranges has only some of experts, experts_per_token and expert_ratio, expected all or none"
            )

    def axes(self) -> dict[str, tuple[float, ...]]:
        """The non-empty ranges, by name."""
        values = {name: getattr(self, name) for name in Ranges.__slots__}
        return {name: value for name, value in values.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Range of the collectives' message sizes, bytes."""

    smallest_bytes: int
    largest_bytes: int

    def __post_init__(self) -> None:
        if self.smallest_bytes > self.largest_bytes:
            raise UsageError(
                f"messages.smallest_bytes is {self.smallest_bytes}, "
                f"expected at most messages.largest_bytes ({self.largest_bytes})"
            )

    def sizes_bytes(self) -> list[int]:
        """Powers of two times the smallest size, up to the largest."""
        sizes = [self.smallest_bytes]
        while sizes[-1] * 2 <= self.largest_bytes:
            sizes.append(sizes[-1] * 2)
        return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRange:
    """Entries of a collective, and the sizes of the groups that exchange them."""

    entries: tuple[int, ...]
    processes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan as written, with the name it is stored under.

    `shapes_per_operator` 0 means every shape of the ranges, empty `operators` all operators. With `collectives`, only
    the named collectives are measured, at these entries; without it all, at the sizes of `messages`. `load` is the
    device's load while operators other than collectives are measured.

    A plan with `models` takes sizes from them, and has ranges of layouts only. `device` is the kind of device that its
    sizes suit; empty: any.

    Raises:
        UsageError: it has both models and ranges of their sizes, or neither.
    """

    name: str
    shapes_per_operator: int
    seed: int
    ranges: Ranges
    models: tuple[ModelConfig, ...] = ()
    device: str = ""
    messages: Messages | None = None
    collectives: Mapping[str, tuple[CollectiveRange, ...]] = field(default_factory=dict)
    operators: tuple[str, ...] = ()
    most_gflop: float = inf
    most_tokens: int = 2**40
    most_elements: int = 2**60
    most_parameters: int = 2**60
    load: Load = Load.BURST

    def __post_init__(self) -> None:
        given = [name for name in OF_MODELS if getattr(self.ranges, name)]
        if self.models and given:
            raise UsageError(f"ranges.{given[0]} is given together with models, whose own sizes are measured")
        if not self.models and not self.ranges.hidden_size:
            raise UsageError("ranges.hidden_size is missing, expected it, or models by name")

    def axes(self) -> dict[str, tuple[float, ...]]:
        """The non-empty ranges, by name; with models also their indices."""
        return ({"model": tuple(range(len(self.models)))} if self.models else {}) | self.ranges.axes()

    def entries(self, collective: str, *, processes: int, element_bytes: int) -> list[int]:
        """Entries at which a group of `processes` measures a collective, ascending."""
        if self.collectives:
            own = [one.entries for one in self.collectives.get(collective, ()) if processes in one.processes]
            return sorted({entries for listed in own for entries in listed})
        if self.messages is None:
            return []
        return [size // element_bytes for size in self.messages.sizes_bytes()]
