"""The content of a plan: ranges of shapes, limits on them, and the messages of collectives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, ClassVar

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.record import WITH_DEFAULT, Check, Record, one_of
from kernelcast.runtime.request.model import ModelConfig

_LARGEST = 2**40  # of any number in a plan; larger ones are slips
_Size = Annotated[int, Check(lambda size: 1 <= size <= _LARGEST, "a whole number from 1")]
_FromZero = Annotated[int, Check(lambda number: 0 <= number <= _LARGEST, "a whole number from 0")]
_Sizes = Annotated[
    tuple[int, ...], Check(lambda sizes: all(1 <= n <= _LARGEST for n in sizes), "whole numbers from 1")
]
_Ratios = Annotated[
    tuple[float, ...], Check(lambda ratios: all(0 < n < 1000 for n in ratios), "numbers above 0")
]

OF_MODELS = (
    "hidden_size", "head_size", "attention_heads", "mlp_ratio", "vocabulary_size", "queries_per_kv_head", "experts",
    "experts_per_token", "expert_ratio", "kv_rank", "sliding_window",
)  # fmt: skip
"""Ranges of model sizes, which a plan with named models must not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges(Record):
    """Values that shapes are drawn from, a tuple each; see docs/plans.md.

    Heads are given by either `head_size` or `attention_heads`. `mlp_ratio` times the hidden size is the MLP's width,
    `expert_ratio` times the hidden size an expert's; `queries_per_kv_head` above 1 is grouped-query attention;
    `kv_rank` is the low rank of keys and values in latent attention. The plan's models lack features without a range.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = WITH_DEFAULT
    tensor_parallel: _Sizes
    micro_batch: _Sizes
    sequence_length: _Sizes
    hidden_size: _Sizes = ()
    head_size: _Sizes = ()
    attention_heads: _Sizes = ()
    mlp_ratio: _Ratios = ()
    vocabulary_size: _Sizes = ()
    layers: _Sizes
    queries_per_kv_head: _Sizes = ()
    experts: _Sizes = ()
    experts_per_token: _Sizes = ()
    expert_ratio: _Ratios = ()
    expert_parallel: _Sizes = ()
    context_parallel: _Sizes = ()
    kv_rank: _Sizes = ()
    sliding_window: _Sizes = ()

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        for name in Ranges.__slots__:
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))
        if not self.hidden_size:
            return  # the plan names its models
        if missing := [
            name for name in ("hidden_size", "mlp_ratio", "vocabulary_size") if not getattr(self, name)
        ]:
            raise UsageError(field=missing[0])
        if bool(self.head_size) == bool(self.attention_heads):
            found = "{} and {} are both" if self.head_size else "neither {} nor {} is"
            found = found.format("head_size", "attention_heads")
            raise UsageError(f"{found} given, expected one of them")
        of_experts = [bool(one) for one in (self.experts, self.experts_per_token, self.expert_ratio)]
        if any(of_experts) and not all(of_experts):
            raise UsageError(
                "only some of experts, experts_per_token and expert_ratio are given, expected all or none"
            )

    def axes(self) -> dict[str, tuple[float, ...]]:
        """The non-empty ranges, by name."""
        values = {name: getattr(self, name) for name in Ranges.__slots__}
        return {name: value for name, value in values.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages(Record):
    """Range of the collectives' message sizes, bytes."""

    smallest_bytes: _Size
    largest_bytes: _Size

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        fits = self.smallest_bytes <= self.largest_bytes
        self.require("smallest_bytes", fits, f"at most largest_bytes ({self.largest_bytes})")

    def sizes_bytes(self) -> list[int]:
        """Powers of two times the smallest size, up to the largest."""
        sizes = [self.smallest_bytes]
        while sizes[-1] * 2 <= self.largest_bytes:
            sizes.append(sizes[-1] * 2)
        return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRange(Record):
    """Entries of a collective, and the sizes of the groups that exchange them."""

    entries: _Sizes
    processes: _Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Record):
    """A plan as written, with the name it is stored under.

    `shapes_per_operator` 0 means every shape of the ranges, empty `operators` all operators. With `collectives`, only
    the named collectives are measured, at these entries; without it all, at the sizes of `messages`. `load` is the
    device's load while operators other than collectives are measured.

    A plan with `models` takes sizes from them, and has ranges of layouts only (else a UsageError). `device` is the kind
    of device that its sizes suit; empty: any.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = WITH_DEFAULT
    name: str
    shapes_per_operator: _FromZero = 0
    seed: _FromZero
    ranges: Ranges
    models: tuple[ModelConfig, ...] = ()
    device: Annotated[str, Check(lambda kind: kind in ("", "cpu", "cuda"), "cpu or cuda")] = ""
    messages: Messages | None = None
    collectives: Mapping[str, tuple[CollectiveRange, ...]] = field(default_factory=dict)
    operators: tuple[str, ...] = ()
    most_gflop: Annotated[float, Check(lambda limit: limit > 0, "a number above 0")] = inf
    most_tokens: _Size = _LARGEST
    most_elements: int = 2**60
    most_parameters: int = 2**60
    load: Load = Load.BURST

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        known = [op.name for op in OPERATORS.values() if op.is_collective]
        for names, accepted in ((self.collectives, known), (self.operators, list(OPERATORS))):
            if odd := [name for name in names if name not in accepted]:
                what = "collectives" if accepted is known else "operators"
                raise UsageError(field=what, found=odd[0], expected=one_of(accepted).expected)
        given = [name for name in OF_MODELS if getattr(self.ranges, name)]
        if self.models and given:
            raise UsageError(f"ranges.{given[0]} is given together with models, whose own sizes are measured")
        if not self.models and not self.ranges.hidden_size:
            raise UsageError("ranges.hidden_size is missing, expected sizes, or models by name")

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
