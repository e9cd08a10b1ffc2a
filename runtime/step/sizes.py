"""What one device holds of a model's sizes: one number each, or float64 [rows] for the devices of many layouts."""

from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar

from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.request.fields import LAYOUT, EagerKernels, LinearKind
from kernelcast.runtime.request.layout import Cluster, Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS
from kernelcast.runtime.step.adapters import is_adapted
from kernelcast.runtime.step.chunks import DENSE, LayerKind
from kernelcast.runtime.step.expert_load import fullest
from kernelcast.runtime.step.groups import ALONE, Group, context_group, expert_groups, tensor_group
from kernelcast.runtime.step.modules import MODULES, RECIPES, Modules
from kernelcast.runtime.step.op import Number, flag

FLOAT8_BYTES = 1
_OF_EXPERTS = ("ep", "expert_tp", "expert_overlap", "fp8_dispatch", "expert_dispatcher", "cuda_graphs")
# Fields that no layer depends on: layers are remembered by the others.
_OF_STEP = {
    "pp", "dp", "micro_batches", "schedule", "virtual_stages", "recompute", "zero", "layer_counts", "layer_split",
    "reduce_dtype", "recompute_modules", "recompute_layers", "recompute_together", "recompute_early_stop", "optimizer",
    "optimizer_states", "host_launch_us", "attention_kernel", "exposed_share", "gradient_collective", "shard_group",
    "offload_modules",
    "overlap_gradients", "overlap_parameters", "overlap_bucket", "expert_imbalance", "expert_tokens", "expert_capacity",
    "offload_optimizer", "offload_activations", "host_link_gb_per_s", "host_memory_gb_per_s",
    "power_limit_w",
}  # fmt: skip
_OF_LAYERS = tuple(name for name in LAYOUT if name not in _OF_STEP and name not in _OF_EXPERTS)


def padded_vocabulary(
    vocabulary_size: int, tp: Number, multiple: int = LAYOUT["vocabulary_multiple"].default
) -> Number:
    """Vocabulary rows after padding, v = ceil(v_raw / f) · f with f = multiple · tp (eq. 1, 2: 128)."""
    factor = multiple * tp
    return -(-vocabulary_size // factor) * factor


def _of_layout(name: str) -> cached_property[Number]:
    """A field of the layout."""
    return cached_property(attrgetter(f"layout.{name}"))


def _cut(of: str, degree: str = "tp") -> cached_property[Number]:
    """A size of the model on one device, where a degree cuts it."""
    return cached_property(lambda s: getattr(s.model, of) // getattr(s.layout, degree))


@dataclass(frozen=True, kw_only=True, eq=False)
class Sizes:
    """The sizes of `model` on one device of a layout, for a `kind` of layer. `layout` holds numbers, or float64 [rows]
    where a search chooses: then only parameters and bytes are computed, without `cluster`. Activations have
    `element_bytes`; `is_cpu`: torch keeps more; `of_fullest`: rows of the fullest device over the mean.
    """

    model: ModelConfig
    layout: Parallelism
    kind: LayerKind = DENSE
    cluster: Cluster | None = None
    element_bytes: int = 2
    is_cpu: bool = False
    of_fullest: Number | None = None

    @classmethod
    def alone(cls, model: ModelConfig, *, kind: LayerKind = DENSE, **fields: Any) -> "Sizes":
        """Sizes by fields of a layout, unchecked, by default as usual: a layer can have sizes that no layout has."""
        return cls(model=model, kind=kind, layout=Parallelism.unchecked(**fields))

    def of_kind(self, kind: LayerKind) -> "Sizes":
        """The same for a layer of another kind."""
        known: dict[LayerKind, Sizes] = self._kinds
        if kind not in known:
            known[kind] = replace(self, kind=kind)
        return known[kind]

    @cached_property
    def _kinds(self) -> dict[LayerKind, "Sizes"]:
        return {self.kind: self}

    @cached_property
    def _key(self) -> tuple[object, ...]:
        """All that a layer depends on; a dense one not on how experts are spread."""
        layout, own = self.layout, (self.kind, self.cluster, self.element_bytes, self.is_cpu)
        fields = [getattr(layout, name) for name in _OF_LAYERS]
        if self.kind.has_experts:
            fields += [getattr(layout, name) for name in _OF_EXPERTS]
            fields += [self.imbalance, self.overlaps_experts]
        return (*own, *fields, self.model)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sizes) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Of the model what differs between the questions of one process: all of it takes longer than to look up.
        own = self.model
        model = (
            own.name,
            own.sequence_length,
            own.hidden_size,
            own.attention_heads,
            own.kv_heads,
            own.mlp_size,
        )
        return hash((*self._key[:-1], *model, own.layers, own.vocabulary_size))

    tp = _of_layout("tp")
    """Tensor-parallel degree."""
    cp = _of_layout("cp")
    """Context-parallel degree."""
    ep = _of_layout("ep")
    """Expert-parallel degree."""
    expert_tp = _of_layout("expert_tp")
    """Devices that an expert is cut into."""

    @property
    def micro_batch(self) -> Number:
        """Sequences per micro-batch, b."""
        return self.layout.sequences_per_sample * self.layout.micro_batch

    @cached_property
    def sequence_parallel(self) -> Number:
        """1 where norms and residuals hold a tp-th of the tokens, else 0; with a tp of 1 there is nothing to cut."""
        return self.layout.sequence_parallel * flag(self.tp > 1)

    context_exchange: ClassVar[Any] = _of_layout("context_exchange")
    """How context parallelism brings queries and keys together."""

    @cached_property
    def group(self) -> Group:
        """The tensor-parallel group."""
        return ALONE if self.cluster is None else tensor_group(self.layout, self.cluster)

    @cached_property
    def context_group(self) -> Group:
        """The context-parallel group."""
        return ALONE if self.cluster is None else context_group(self.layout, self.cluster)

    @cached_property
    def expert_groups(self) -> tuple[Group, Group]:
        """The expert-parallel group, and the devices that share one expert."""
        return (ALONE, ALONE) if self.cluster is None else expert_groups(self.layout, self.cluster)

    @cached_property
    def imbalance(self) -> Number:
        """Rows of the fullest device's experts as a multiple of the mean."""
        if self.of_fullest is not None:
            return self.of_fullest
        return fullest(self.layout, self.model.experts, self.layout.ep).in_time

    @property
    def overlaps_experts(self) -> bool:
        """Whether any pass overlaps its exchange with experts with what another micro-batch computes."""
        return self.layout.expert_overlap or SCHEDULE_KINDS[self.layout.schedule].pairs

    @property
    def drops(self) -> int:
        """1 with dropout, else 0."""
        return int(self.layout.dropout > 0)

    @property
    def mask_bytes(self) -> int:
        """Bytes per entry of a dropout's mask: one on a GPU, on a CPU a tensor like any other; 0 without dropout."""
        return (self.element_bytes if self.is_cpu else 1) * self.drops

    @property
    def modules(self) -> Modules:
        """What the framework's modules keep."""
        return MODULES[self.layout.kept_by]

    @cached_property
    def reference(self) -> "Sizes | None":
        """Of the frozen model that runs forward before the trained one (DPO): without adapters and dropout."""
        if self.layout.forward_passes == 1:
            return None
        return replace(self, layout=Parallelism.unchecked(self.layout, lora_rank=0, dropout=0.0))

    @property
    def has_reference_weights(self) -> bool:
        """Whether that one has weights of its own; without its adapters, a model trained with LoRA is its reference."""
        return self.layout.forward_passes > 1 and not self.is_frozen

    @property
    def eager(self) -> EagerKernels:
        """What runs as separate kernels; they were counted in 16 bit, where norms and rotary embedding cast to fp32."""
        return self.layout.eager if self.element_bytes == 2 else "none"

    @property
    def is_frozen(self) -> bool:
        """Whether adapters alone are trained (LoRA)."""
        return self.layout.lora_rank > 0

    def is_cast(self, kind: LinearKind) -> bool:
        """Whether products of these linears run in 8 bit."""
        return self.layout.fp8_recipe != "none" and kind in self.layout.fp8_linears

    @property
    def is_quantised(self) -> bool:
        """Whether frozen weights of linears are held in 4 bit (QLoRA)."""
        return self.layout.frozen_weights != "same"

    def is_narrow(self, kind: LinearKind) -> bool:
        """Whether weights of these linears exist in fewer bits than the training's type has."""
        return self.is_quantised or self.is_cast(kind)

    def input_bytes(self, kind: LinearKind, role: str) -> float:
        """Bytes per entry of a linear's input as kept, with scales. A frozen weight needs none; its adapter keeps what
        it reads in the training's type, with dropout the dropped copy and its mask.
        """
        if self.is_frozen:
            return (
                (self.element_bytes + self.adapter_mask_bytes)
                if is_adapted(self.model, self.layout, kind, role)
                else 0
            )
        return RECIPES[self.layout.fp8_recipe].entry_bytes if self.saves_float8(kind) else self.element_bytes

    def cast_bytes(self, kind: LinearKind, role: str) -> float:
        """Bytes per entry of a linear's own copy (cast, or after dropout) of an input that another op saves too."""
        if self.is_frozen:
            return self.input_bytes(kind, role) if self.layout.lora_dropout else 0
        return self.input_bytes(kind, role) if self.saves_float8(kind) else 0

    @property
    def attention_keeps_output(self) -> bool:
        """Whether attention itself saves its output: no gate does, and the output projection saves nothing, or a cast
        or dropped copy.
        """
        role = "attention_output"
        shares = self.input_bytes("attention", role) and not self.cast_bytes("attention", role)
        return not (shares or self.model.attention_gate)

    @property
    def adapter_mask_bytes(self) -> int:
        """Bytes per entry of the mask of a dropout before an adapter."""
        return int(self.layout.lora_dropout > 0) * (self.element_bytes if self.is_cpu else 1)

    def saves_float8(self, kind: LinearKind) -> bool:
        """Whether inputs of these linears are saved as they are cast."""
        return self.is_cast(kind) and self.modules.caches_float8

    def gathers_float8(self, kind: str) -> bool:
        """Whether a cut sequence is cast before these linears gather it: not into userbuffers, whose exposed share was
        found with 16 bit.
        """
        layout, modules = self.layout, self.modules
        is_cast = layout.fp8_recipe in modules.gathered_recipes and kind in layout.fp8_linears
        return is_cast and not (modules.has_engine and layout.tensor_overlap == "products")

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
    def activation_bytes(self) -> Number:
        """Bytes of one micro-batch's hidden states on one device."""
        return self.element_bytes * self.local_tokens * self.hidden

    heads = _cut("attention_heads")
    """Query heads on one device, h/tp."""
    kv_heads = _cut("kv_heads")
    """Key-value heads on one device."""

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

    recurrent_heads = _cut("recurrent_heads")
    """Heads of Mamba-2, or value heads of a gated delta net, on one device."""
    recurrent_groups = _cut("recurrent_groups")
    """Groups of Mamba-2, or key heads of a gated delta net, on one device."""

    @cached_property
    def recurrent_width(self) -> Number:
        """Width of what these heads return together."""
        return self.recurrent_heads * self.model.recurrent_head_size

    @cached_property
    def convolved_width(self) -> Number:
        """Channels of the convolution before a scan: values, and what writes to and reads from the state."""
        return self.recurrent_width + 2 * self.recurrent_groups * self.model.recurrent_state_size

    @property
    def rotates(self) -> bool:
        """Whether queries and keys have a rotary position embedding."""
        return self.model.rotary and self.kind.rotates

    @property
    def is_gated(self) -> bool:
        """Whether MLPs have a gate: SwiGLU or GeGLU."""
        return self.model.activation in ("swiglu", "geglu")

    @property
    def branches(self) -> int:
        """Products of an MLP's width that its projection up makes: gate and up, or up alone."""
        return 2 if self.is_gated else 1

    mlp_width = _cut("mlp_size")
    """MLP columns on one device, f/tp."""
    experts = _cut("experts", "ep")
    """Routed experts on one device, E/ep."""
    expert_width = _cut("expert_width", "expert_tp")
    """Columns of one routed expert on one device."""
    shared_expert_width = _cut("shared_expert_size")
    """Columns of the shared experts on one device."""

    @property
    def routed_size(self) -> int:
        """Size of the vectors that routed experts read and write."""
        return self.model.routed_size

    @cached_property
    def sent_rows(self) -> Number:
        """Rows that a device sends to experts: one for each of its tokens and their experts."""
        return self.local_tokens * self.model.experts_per_token

    @cached_property
    def vocabulary(self) -> Number:
        """Rows of the padded vocabulary on one device, v/tp."""
        return (
            padded_vocabulary(self.model.vocabulary_size, self.tp, self.layout.vocabulary_multiple) // self.tp
        )

    @property
    def sent_entries(self) -> Number:
        """Entries that a device sends to its neighbour in the next stage: its part of a micro-batch's activations."""
        return self.tokens * self.hidden // self.tp
