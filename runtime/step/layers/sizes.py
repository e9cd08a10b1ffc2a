"""What one device holds of a model's sizes, and what every layer's description has in common."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

from kernelcast.runtime.operators import Direction
from kernelcast.runtime.request.fields import LAYOUT, ContextExchange, LossKind, TensorOverlap
from kernelcast.runtime.request.layout import Cluster, Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS
from kernelcast.runtime.step.calls import Beside, Calls, Component, backward, call, forward
from kernelcast.runtime.step.expert_load import ExpertLoad
from kernelcast.runtime.step.groups import ALONE, Group, context_group, expert_groups, tensor_group
from kernelcast.runtime.step.layers.kinds import DENSE, LayerKind
from kernelcast.runtime.step.layers.linear import IN_TRAINING_TYPE, Linears, Matrix
from kernelcast.runtime.step.layers.modules import TORCH, Modules
from kernelcast.runtime.step.recomputation import Recomputation

Number: TypeAlias = Any
"""A whole number, or float64 [rows]: one formula serves one device, and all stages of thousands of layouts."""


OF_SIZES = ("tp", "cp", "ep", "expert_tp", "micro_batch", "sequence_parallel")
"""Fields of a layout that decide the sizes on a device."""
_NO_EXPERTS: dict[str, Any] = {
    "ep": 1,
    "expert_tp": 1,
    "expert_group": ALONE,
    "expert_tensor_group": ALONE,
    "imbalance": 1.0,
    "dispatches_float8": False,
    "overlaps_experts": False,
}
"""Fields of `Sizes` that are about experts alone."""


def padded_vocabulary(
    vocabulary_size: int, tp: Number, multiple: int = LAYOUT["vocabulary_multiple"].default
) -> Number:
    """Vocabulary rows after padding, v = ceil(v_raw / f) · f with f = multiple · tp (eq. 1, 2: 128)."""
    factor = multiple * tp
    return -(-vocabulary_size // factor) * factor


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of `model` on one of `tp` devices, for micro-batches of `micro_batch` samples.

    `kind` is that of the layer. With `sequence_parallel` (0 or 1), norms and residuals hold a tp-th of the tokens.
    `group` is the tensor-parallel group, which collectives run in; `overlap` says which of them run beside products.
    `cp`, `ep`, `expert_tp` and `context_exchange` are as in `Parallelism`, with the groups that their collectives run
    in; `imbalance` is how full the fullest device's experts are (`ExpertLoad`), `vocabulary_multiple` its own, and
    `drops` 1 where it has dropout.
    `dispatches_float8` is `fp8_dispatch`, `overlaps_experts` whether any pass has its exchange with experts beside
    another micro-batch's computing (`expert_overlap`, or a schedule with pairs of passes); `linears` says how linears
    compute.
    """

    model: ModelConfig
    kind: LayerKind = DENSE
    tp: Number = 1
    cp: Number = 1
    ep: Number = 1
    expert_tp: Number = 1
    micro_batch: Number = 1
    sequence_parallel: Number = 0
    group: Group = ALONE
    context_group: Group = ALONE
    expert_group: Group = ALONE
    expert_tensor_group: Group = ALONE
    overlap: TensorOverlap = LAYOUT["tensor_overlap"].default
    context_exchange: ContextExchange = LAYOUT["context_exchange"].default
    imbalance: Number = 1.0
    vocabulary_multiple: int = LAYOUT["vocabulary_multiple"].default
    drops: int = 0
    dispatches_float8: bool = False
    overlaps_experts: bool = False
    linears: Linears = IN_TRAINING_TYPE

    @classmethod
    def of(cls, model: ModelConfig, layout: Parallelism, cluster: Cluster) -> "Sizes":
        """What one device of a layout holds; a tensor-parallel degree of 1 has no sequence to cut."""
        expert_group, expert_tensor_group = expert_groups(layout, cluster)
        load = ExpertLoad.of(lambda name: getattr(layout, name))
        return cls(
            model=model,
            tp=layout.tp,
            cp=layout.cp,
            ep=layout.ep,
            expert_tp=layout.expert_tp,
            micro_batch=layout.micro_batch,
            sequence_parallel=int(layout.sequence_parallel and layout.tp > 1),
            group=tensor_group(layout, cluster),
            context_group=context_group(layout, cluster),
            expert_group=expert_group,
            expert_tensor_group=expert_tensor_group,
            vocabulary_multiple=layout.vocabulary_multiple,
            drops=int(layout.dropout > 0),
            overlap=layout.tensor_overlap,
            context_exchange=layout.context_exchange,
            imbalance=load.fullest(model.experts, layout.ep).in_time,
            dispatches_float8=layout.fp8_dispatch,
            overlaps_experts=layout.expert_overlap or SCHEDULE_KINDS[layout.schedule].pairs,
            linears=Linears.of(lambda name: getattr(layout, name)),
        )

    @classmethod
    def of_columns(
        cls,
        model: ModelConfig,
        columns: Mapping[str, Number],
        *,
        vocabulary_multiple: int,
        imbalance: Number,
        linears: Linears = IN_TRAINING_TYPE,
    ) -> "Sizes":
        """Without groups, of the fields `OF_SIZES` of many layouts, float64 [rows] each."""
        return cls(
            model=model,
            vocabulary_multiple=vocabulary_multiple,
            imbalance=imbalance,
            linears=linears,
            **columns,
        )

    def of_kind(self, kind: LayerKind) -> "Sizes":
        """The same for a layer of another kind.

        Without experts all ways to spread those are one: what is described once serves all of them.
        """
        if kind not in self._by_kind:
            self._by_kind[kind] = replace(self, kind=kind, **({} if kind.has_experts else _NO_EXPERTS))
        return self._by_kind[kind]

    @cached_property
    def without_experts(self) -> "Sizes":
        """The same for a layer that differs in that alone."""
        return self.of_kind(self.kind._replace(has_experts=False))

    @cached_property
    def _by_kind(self) -> dict[LayerKind, "Sizes"]:
        return {self.kind: self} if self.kind.has_experts or not self.model.experts else {}

    def __hash__(self) -> int:
        return self._hash  # computed once: descriptions of layers are looked up by sizes

    @cached_property
    def _hash(self) -> int:
        # Of the model what differs between the questions of one process: all of it takes longer than to look up.
        model = (self.model.name, self.model.sequence_length, self.model.hidden_size)
        return hash((self.kind, model, *(getattr(self, name) for name in OF_SIZES), self.imbalance))

    @cached_property
    def length(self) -> Number:
        """Tokens of a sample in one of the cp parts that context parallelism cuts a sequence into, l/cp."""
        return self.model.sequence_length // self.cp

    @cached_property
    def local_length(self) -> Number:
        """Tokens of a sample on one device where tensor parallelism cuts these again."""
        return self.length // (1 + self.sequence_parallel * (self.tp - 1))

    @cached_property
    def tokens(self) -> Number:
        """Tokens of a micro-batch, b·l/cp."""
        return self.micro_batch * self.length

    @cached_property
    def local_tokens(self) -> Number:
        """Tokens of a micro-batch on one device where tensor parallelism cuts the sequence."""
        return self.micro_batch * self.local_length

    @property
    def hidden(self) -> int:
        """Hidden size, d."""
        return self.model.hidden_size

    @cached_property
    def heads(self) -> Number:
        """Query heads on one device, h/tp."""
        return self.model.attention_heads // self.tp

    @cached_property
    def kv_heads(self) -> Number:
        """Key-value heads on one device."""
        return self.model.kv_heads // self.tp

    @cached_property
    def query_width(self) -> Number:
        """Width of one device's query heads together."""
        return self.heads * self.model.head_size

    @cached_property
    def attention_width(self) -> Number:
        """Width of what one device's heads return together."""
        return self.heads * self.model.value_size

    @cached_property
    def kv_width(self) -> Number:
        """Width of one device's key heads together, and of its value heads."""
        return self.kv_heads * self.model.head_size

    @cached_property
    def qkv_width(self) -> Number:
        """Width of one device's queries, keys and values together."""
        return self.query_width + 2 * self.kv_width

    @property
    def rotates(self) -> bool:
        """Whether queries and keys have a rotary position embedding."""
        return self.model.rotary and self.kind.rotates

    @cached_property
    def mlp_width(self) -> Number:
        """MLP columns on one device, f/tp."""
        return self.model.mlp_size // self.tp

    @cached_property
    def experts(self) -> Number:
        """Routed experts on one device, E/ep."""
        return self.model.experts // self.ep

    @cached_property
    def expert_width(self) -> Number:
        """Columns of one routed expert on one device."""
        return self.model.expert_width // self.expert_tp

    @cached_property
    def shared_expert_width(self) -> Number:
        """Columns of the shared experts on one device."""
        return self.model.shared_expert_size // self.tp

    @cached_property
    def sent_rows(self) -> Number:
        """Rows that a device sends to experts: one for each of its tokens and their experts."""
        return self.local_tokens * self.model.experts_per_token

    @cached_property
    def vocabulary(self) -> Number:
        """Rows of the padded vocabulary on one device, v/tp."""
        return padded_vocabulary(self.model.vocabulary_size, self.tp, self.vocabulary_multiple) // self.tp

    @property
    def sent_entries(self) -> Number:
        """Entries that a device sends to its neighbour in the next stage: its part of a micro-batch's activations."""
        return self.tokens * self.hidden // self.tp

    def synced(self, count: Number, *, gather: bool = True, scatter: bool = True, width: int = 0) -> Calls:
        """`count` all-reduces of activations across the tensor-parallel group, as listed by a layer.

        With sequence parallelism each is a gather where its region begins and a reduce-scatter where it ends; `gather`
        and `scatter` False leave one of them out. `width` is the entries per token, the hidden size unless given.
        """
        count = count * (self.tp > 1)
        entries = self.tokens * (width or self.hidden)
        layout = self.group.nodes, self.group.gpus_per_node
        if not self.sequence_parallel or width:
            return (call("all_reduce", entries, *layout, role="tensor", count=count),)
        return (
            call("all_gather", -(-entries // self.tp), *layout, role="tensor", count=count * gather),
            call("reduce_scatter", entries, *layout, role="tensor", count=count * scatter),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How activations are kept for the backward pass.

    `element` bytes per entry; `mask` bytes per entry that dropout may drop, 0 without dropout; on a CPU (`is_cpu`)
    torch runs some operators in pieces and keeps more; `loss` as in `Parallelism`; `modules` are the framework's.
    """

    element: int
    mask: int = 0
    is_cpu: bool = False
    loss: LossKind = "plain"
    modules: Modules = TORCH


@dataclass(frozen=True, slots=True)
class Layer(ABC):
    """One layer on one device, for one micro-batch."""

    sizes: Sizes

    @property
    @abstractmethod
    def calls(self) -> Calls:
        """Its operators, without collectives; the directions of their backward pass follow from the table."""

    @property
    @abstractmethod
    def parameters(self) -> Number:
        """Parameters on one device (Table III)."""

    @abstractmethod
    def kept_bytes(self, kept: Kept) -> Number:
        """Bytes that autograd keeps from its forward to its backward pass, without its input."""

    @property
    def weights(self) -> tuple[Matrix, ...]:
        """Its weight matrices in linears that may run in 8 bit, or have adapters."""
        return ()

    @property
    def matrices(self) -> Number:
        """Entries of its weight matrices, without biases and norms."""
        return sum(one.entries for one in self.weights)

    @property
    def adapter_parameters(self) -> Number:
        """Of the adapters beside its weights."""
        linears = self.sizes.linears
        return linears.adapter_parameters(self.weights) if linears.is_frozen else 0

    @property
    def cast_weights(self) -> tuple[Matrix, ...]:
        """Those of its weights that have copies in 8 bit."""
        linears = self.sizes.linears
        if linears.recipe == "none":
            return ()
        return tuple(one for one in self.weights if linears.is_cast(one.kind))

    @property
    def weight_casts(self) -> Calls:
        """The casts of these to 8 bit."""
        return tuple(call("float8_cast", one.k, one.n, count=one.count) for one in self.cast_weights)

    @property
    def cast_entries(self) -> Number:
        return sum(one.entries for one in self.cast_weights)

    @property
    def forward_collectives(self) -> Calls:
        return ()

    @property
    def backward_collectives(self) -> Calls:
        return ()

    @property
    def beside_forward(self) -> tuple[Beside, ...]:
        """Collectives of its forward pass that run beside a product; how many follows from `Sizes.overlap` alone."""
        return ()

    @property
    def beside_backward(self) -> tuple[Beside, ...]:
        """Those of its backward pass."""
        return ()

    @property
    def expert_parameters(self) -> Number:
        """Those of its parameters that expert parallelism spreads."""
        return 0

    def recomputed(self, how: Recomputation) -> Calls:
        """What its backward pass runs again of its forward pass."""
        return ()

    def beside_again(self, how: Recomputation) -> tuple[Beside, ...]:
        """Collectives beside products that full recomputation runs again, as many as in the forward pass."""
        return tuple(one._replace(collective=(), compute=()) for one in self.beside_forward)

    def products(self, direction: Direction, *roles: str) -> Calls:
        """Products with these roles in one direction."""
        calls = [one for one in calls_of(self) if one.role in roles]
        passes = forward(calls) if direction is Direction.FORWARD else backward(calls)
        return tuple(one for one in passes if one.direction is direction)

    def gathered_again(self, *roles: str) -> Beside:
        """A gather of the input of these products, and the products of their backward pass that do not wait for it.

        With sequence parallelism a device keeps its shard of the input; the whole is needed for the weights' gradients
        only, and gathered while the input's gradient is made (arXiv 2205.05198, section 4.2.2). Else both are empty.
        """
        if not self.sizes.sequence_parallel or not roles:
            return Beside(component=Component.GATHER_INPUT)
        gather = forward(self.sizes.synced(1, scatter=False))
        return Beside(gather, self.products(Direction.INPUT_GRADIENT, *roles), Component.GATHER_INPUT)

    def summed_beside_weights(self, *roles: str) -> Beside:
        """The sum of the input's gradient of these products, while their weights' gradients are made.

        Megatron-LM starts it before the product (tensor_parallel/layers.py), and so does TransformerEngine.
        """
        if not roles:
            return Beside(of_weights=True)
        summed = forward(self.sizes.synced(1, gather=False))
        return Beside(summed, self.products(Direction.WEIGHT_GRADIENT, *roles), of_weights=True)


@lru_cache(maxsize=1 << 9)
def calls_of(layer: Layer) -> Calls:
    """`Layer.calls`, which several descriptions of the same layer need, and layers that share a part."""
    return layer.calls
