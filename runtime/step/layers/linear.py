"""Linears: in which type their products run, and what adapters (LoRA) make of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.request.fields import LAYOUT, AdaptedKind, Float8Recipe, LinearKind
from kernelcast.runtime.step.calls import Call, Calls, call

_SCALED = {"tensorwise": "tensor", "blockwise": "block"}
_FLOAT8_BYTES = 1
FLOAT8_COPIES_BYTES = 2
"""Of a weight in 8 bit: as it is, for the output, and transposed, for the input's gradient."""


class Matrix(NamedTuple):
    """The weight of a linear on one device: `k` × `n` entries, `count` times. Sizes may be arrays [rows]."""

    kind: LinearKind
    k: Any
    n: Any
    count: Any = 1

    @property
    def entries(self) -> Any:
        """Of all of them."""
        return self.count * self.k * self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class Linears:
    """How the linears of layers compute: the fields of a layout that decide it, see `Parallelism`."""

    recipe: Float8Recipe = LAYOUT["fp8_recipe"].default
    in_float8: tuple[LinearKind, ...] = LAYOUT["fp8_linears"].default
    rank: int = LAYOUT["lora_rank"].default
    adapted: tuple[AdaptedKind, ...] = LAYOUT["lora_linears"].default

    @classmethod
    def of(cls, field: Callable[[str], Any]) -> "Linears":
        """By the value that `field` has for a name."""
        return cls(
            recipe=field("fp8_recipe"),
            in_float8=field("fp8_linears"),
            rank=field("lora_rank"),
            adapted=field("lora_linears"),
        )

    @property
    def is_frozen(self) -> bool:
        """Whether adapters alone are trained."""
        return self.rank > 0

    def is_cast(self, kind: LinearKind) -> bool:
        """Whether products of these linears run in 8 bit."""
        return self.recipe != "none" and kind in self.in_float8

    def is_adapted(self, kind: LinearKind) -> bool:
        """Whether these linears have adapters."""
        return self.is_frozen and kind in self.adapted

    def calls(self, kind: LinearKind, *shape: Any, role: str) -> Calls:
        """The product of a linear, [m, k, n], or of one per group, [groups, m, k, n].

        A frozen weight has no gradient. An adapter projects the input to its rank and from there to the output, which
        it is added to; its products run in the training's type, and cut like the linear need no collective of their
        own.
        """
        operator = "gemm" if len(shape) == 3 else "grouped_gemm"
        if self.is_cast(kind):
            operator += f"_float8_{_SCALED[self.recipe]}"
        if not self.is_frozen:
            return (call(operator, *shape, role=role),)
        passes = (Direction.FORWARD, Direction.INPUT_GRADIENT)
        frozen = tuple(call(operator, *shape, role=role, direction=one) for one in passes)
        if not self.is_adapted(kind):
            return frozen
        m, k, n = shape
        return (
            *frozen,
            call("gemm", m, k, self.rank, role="adapter_down"),
            call("gemm", m, self.rank, n, role="adapter_up"),
            call("residual_add", 1, m, n),
        )

    def plain(self, *shape: Any, role: str) -> Calls:
        """A product in the training's type, whose weight has no adapter."""
        directions = (Direction.FORWARD, Direction.INPUT_GRADIENT) if self.is_frozen else (Direction.ONCE,)
        return tuple(call("gemm", *shape, role=role, direction=one) for one in directions)

    def bias(self, rows: Any, columns: Any, *, count: int) -> Call:
        """The bias of a linear; a frozen one has no gradient."""
        only = Direction.FORWARD if self.is_frozen else Direction.ONCE
        return call("bias_add", rows, columns, count=count, direction=only)

    def input_bytes(self, kind: LinearKind, element: int) -> int:
        """Bytes per entry of a linear's input as it is kept for the backward pass."""
        return _FLOAT8_BYTES if self.is_cast(kind) else element

    def copy_bytes(self, kind: LinearKind) -> int:
        """The same where something else keeps the input in the training's type, so that both share it unless cast."""
        return _FLOAT8_BYTES if self.is_cast(kind) else 0

    def adapter_width(self, matrices: tuple[Matrix, ...]) -> int:
        """Entries per token of what all adapters project to."""
        return self.rank * sum(self.is_adapted(one.kind) for one in matrices)

    def adapter_parameters(self, matrices: tuple[Matrix, ...]) -> Any:
        """R · (k + n) for every linear that has an adapter, with what a device holds of the linear."""
        return sum(one.count * self.rank * (one.k + one.n) for one in matrices if self.is_adapted(one.kind))


IN_TRAINING_TYPE = Linears()
"""All weights trained, all products in the training's type."""
