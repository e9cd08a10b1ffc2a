"""How a job is laid out: parallel degrees, micro-batches, recomputation, nodes; and questions read by field name."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import prod
from operator import attrgetter
from typing import Any, Self

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError, either
from kernelcast.runtime.request.field_types import whole
from kernelcast.runtime.request.fields import (
    AS_MEASURED,
    DEGREES,
    EXPERT_DEGREES,
    EXPERT_LOAD,
    LAYOUT,
    MAX_DEGREE,
    MEMORY,
    REPLICATING,
    REQUEST,
    LayoutFields,
)
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS, check_schedule

_COUNT = whole(0, MAX_DEGREE)
# Fields that a model without experts refuses.
_OF_EXPERTS = (*EXPERT_DEGREES, *EXPERT_LOAD, "expert_overlap")
# Layer counts are checked with the number of stages.
_CHECKED = tuple(field for field in LAYOUT.values() if field.name != "layer_counts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism(LayoutFields):
    """Layout of one training job (docs/method.md, Symbols).

    Every field has a line in fields.py and docs/fields.md; these need more:

    - `ep`, `expert_tp`: of the tp · dp · cp devices of a stage, ep share the experts of a layer
      (--expert-model-parallel-size of Megatron-LM), and each expert is cut into expert_tp. The groups of
      ep · expert_tp devices hold copies of the experts.
    - `context_exchange`: "ring" passes keys and values on, overlapped with attention (arXiv 2310.01889), "all_to_all"
      gives every device all tokens of some heads (DeepSpeed-Ulysses, arXiv 2309.14509), "all_gather" gathers all keys
      and values (Llama 3, arXiv 2407.21783, section 3.3.2). Each device has an early and a late chunk of the sequence,
      which balances the work under a causal mask.
    - `expert_capacity`, `expert_padding`: Megatron-LM's --moe-expert-capacity-factor and
      --moe-pad-expert-input-to-capacity.
    - `recompute`: "selective" recomputes everything between queries and attention output (arXiv 2205.05198, also of
      `sequence_parallel`).
    - `schedule`: "interleaved" gives every device `virtual_stages` chunks of the model (arXiv 2104.04473),
      "zero_bubble" is ZB-H1 and "zb_v" ZB-V (arXiv 2401.10241), "dualpipe" and "dualpipe_v" are DeepSeek's (arXiv
      2412.19437, section 3.2.1).
    - `zero`: 3 is also called FSDP (arXiv 1910.02054).
    - `layer_split`: "even" is Megatron-LM's, "paper" the rule of GPT-NeoX (eq. 3–5). "balanced" gives the ends of the
      model fewer layers if that shortens the slowest chunk by predicted time; the estimate has the resulting counts.
    - `attention_kernel`: if another one was measured, times are multiplied by a published ratio (docs/hardware.md,
      Attention's kernel).
    - `kept_by`: of times only what is cast and gathered depends on it.
    - `fp8_recipe`: GEMMs of `fp8_linears` in 8 or 4 bit (runtime/step/modules.py): scaled per tensor by its largest
      entry ("tensorwise") or by earlier steps' ("delayed"), per row, per block of 128 ("blockwise"), of 32 with 8-bit
      scales ("mxfp8"), or in 4 bit of 16 ("nvfp4"; "nvfp4_plain" without Hadamard transforms); routers, logits and
      everything between queries and attention output stay in 16 bit, but for attention with `fp8_attention`.
    - `fp8_dispatch`: in both passes, dispatch to the experts sends 8 bits, combination 16 (DeepSeek-V3, arXiv
      2412.19437, section 3.3.3); needs `fp8_recipe`, with which experts read 8 bits anyway.
    - `objective`: "dpo" is direct preference optimization (arXiv 2305.18290): a sample is a chosen and a rejected
      sequence, and a frozen copy of the model, with LoRA the base model itself, gives its log-probabilities of both.
    - `frozen_weights`: NF4 in blocks of 64 as in bitsandbytes, "nf4_double" with quantised scales (QLoRA, arXiv
      2305.14314, section 3); experts too, but not router, embedding and output projection. Needs `lora_rank`.

    UsageError where a field has a wrong type or value, or fields do not go together.
    """

    def __post_init__(self) -> None:
        # A search makes hundreds of thousands of layouts; most of their fields have defaults.
        for field in _CHECKED:
            value = getattr(self, field.name)
            if value is not field.default or (value is None and field.is_required):
                field.check(value)
        # In one order, and hashable.
        for name in ("recompute_modules", "offload_modules", "fp8_linears", "lora_linears", "expert_tokens"):
            if (value := getattr(self, name)) is not LAYOUT[name].default:
                object.__setattr__(self, name, LAYOUT[name].kind.read(value))
        kind = SCHEDULE_KINDS[self.schedule]
        if kind.virtual_stages > 1 == self.virtual_stages:
            object.__setattr__(self, "virtual_stages", kind.virtual_stages)
        check_schedule(self.schedule, self.pp, self.micro_batches, self.virtual_stages)
        self._check_layer_counts()
        self._require(self._own_checks())

    def _require(self, checks: Iterable[tuple[str, object, str]]) -> None:
        """Refuse a field by checks: its name, whether it holds, and what is expected."""
        for name, holds, expected in checks:
            if not holds:
                found = getattr(self, name)
                found = ",".join(map(str, found)) if isinstance(found, tuple) else found
                raise UsageError(field=name, found=found, expected=expected)

    def _own_checks(self) -> Iterator[tuple[str, object, str]]:
        shards = not self.shard_group or self.replicas == 1 or not self.replicas % self.shard_group
        yield "shard_group", shards, f"a divisor of the {self.replicas} replicas (dp), or 0"
        is_one_load = self.expert_tokens is None or self.expert_imbalance == 1
        yield "expert_imbalance", is_one_load, "1 with expert_tokens"
        has_capacity = self.expert_capacity or not self.expert_padding
        yield "expert_padding", has_capacity, "false without expert_capacity"
        modules = self.recompute_modules
        yield "recompute_modules", "per_op" not in modules or len(modules) == 1, "per_op alone, or modules"
        is_16_bit, is_whole = self.fp8_recipe == "none", self.frozen_weights == "same"
        for name in ("fp8_attention", "fp8_dispatch", "fp8_weights"):
            yield name, not (is_16_bit and getattr(self, name)), "false with fp8_recipe none"
        # Products of weights that are in 4 bit run in the training's type.
        yield "frozen_weights", is_whole or self.lora_rank, "same with lora_rank 0, or lora_rank above 0"
        yield "frozen_weights", is_whole or is_16_bit, f"same with fp8_recipe {self.fp8_recipe}"
        of_stage, of_experts = self.world_size // self.pp, self.ep * self.expert_tp
        if of_stage % of_experts:
            product = "ep" if self.expert_tp == 1 else f"ep · expert_tp ({self.ep} · {self.expert_tp})"
            divisor = f"a divisor of tp · dp · cp ({of_stage})"
            raise UsageError(field="ep", subject=product, found=of_experts, expected=divisor)

    def _check_expert_tokens(self, model: ModelConfig) -> None:
        tokens, experts, layers = self.expert_tokens or (), model.experts, model.expert_layers
        if tokens and len(tokens) not in (experts, experts * layers):
            raise UsageError(
                f"expert_tokens are {len(tokens)} numbers, expected {experts}, the experts of model {model.name}, or "
                f"{experts * layers}, for all of its {layers} layers with experts",
                field="expert_tokens",
            )
        for first in range(0, len(tokens), max(1, experts)):
            if not any(tokens[first : first + experts]):
                raise UsageError(
                    f"expert_tokens of layer {first // experts} are all 0, expected tokens for some expert",
                    field="expert_tokens",
                )

    def _check_layer_counts(self) -> None:
        counts = self.layer_counts
        if counts is None:
            return
        if type(counts) is not tuple or len(counts) != self.chunks:
            part = "stage" if self.virtual_stages == 1 else "chunk"
            numbers = f"one number per {part}, {self.chunks} in all"
            raise UsageError(field="layer_counts", found=counts, expected=numbers)
        for index, count in enumerate(counts):
            if not _COUNT.accepts(count):
                raise UsageError(found=count, expected=_COUNT.expected).at("layer_counts", index)

    @classmethod
    def from_global_batch(cls, *, global_batch: int, dp: int, micro_batch: int, **layout: Any) -> Self:
        """A layout of `global_batch` samples per update: micro_batches = global_batch / (micro_batch · dp).

        The other fields are the fields of the class. UsageError where micro_batch · dp does not divide the global
        batch, or another field is wrong.

        >>> Parallelism.from_global_batch(global_batch=512, pp=4, tp=4, dp=8, micro_batch=4).micro_batches
        16
        """
        for name, value in (("dp", dp), ("micro_batch", micro_batch), ("global_batch", global_batch)):
            REQUEST[name].check(value)
        together = micro_batch * dp
        if global_batch % together:
            multiple = f"a multiple of micro_batch · dp ({micro_batch} · {dp} = {together})"
            raise UsageError(field="global_batch", found=global_batch, expected=multiple)
        return cls(dp=dp, micro_batch=micro_batch, micro_batches=global_batch // together, **layout)

    @classmethod
    def unchecked(cls, like: "Parallelism | None" = None, /, **fields: Any) -> Self:
        """A layout of fields that are known to be right, the others as in `like`, or by default.

        Fields that a search chooses may also be arrays [rows]: one object is then many layouts.
        """
        found = object.__new__(cls)
        others = _defaults() if like is None else dict(zip(LAYOUT, _EVERY(like), strict=True))
        for set_field, value in zip(_SETTERS, {**others, **fields}.values(), strict=True):
            set_field(found, value)
        return found

    @property
    def chunks(self) -> int:
        """Pieces that the model is cut into: pp · virtual stages (`stage_of` says where each lies)."""
        return self.pp * self.virtual_stages

    @property
    def degrees(self) -> str:
        """The parallel degrees in words, such as `pp 2 × tp 4 × dp 1`; further ones where they are not 1."""
        always = ("pp", "tp", "dp")
        degrees = " × ".join(
            f"{name} {getattr(self, name)}" for name in DEGREES if name in always or getattr(self, name) > 1
        )
        experts = "".join(
            f", {name} {getattr(self, name)}" for name in EXPERT_DEGREES if getattr(self, name) > 1
        )
        return degrees + experts

    @property
    def world_size(self) -> int:
        """Devices of the job: pp · tp · dp · cp."""
        return prod(getattr(self, name) for name in DEGREES)

    @property
    def replicas(self) -> int:
        """Devices that hold the same parameters: they sum their gradients, and ZeRO shards over them."""
        return prod((self.copies, *(getattr(self, name) for name in REPLICATING)))

    @property
    def copies(self) -> int:
        """Copies of the model in one pipeline: 2 with dualpipe."""
        return SCHEDULE_KINDS[self.schedule].copies

    @property
    def expert_replicas(self) -> int:
        """Devices that hold the same experts: tp · dp · cp · copies / (ep · expert_tp)."""
        return self.tp * self.replicas // (self.ep * self.expert_tp)

    @property
    def shards(self) -> int:
        """Replicas that ZeRO shards over; those beyond hold copies."""
        return self.shard_group if self.shard_group and self.replicas > 1 else self.replicas

    @property
    def samples_per_update(self) -> int:
        """Global batch: micro_batch · micro_batches · dp."""
        return self.micro_batch * self.micro_batches * self.dp

    @property
    def sequences_per_sample(self) -> int:
        """1, or 2 with DPO: a chosen and a rejected one."""
        return 1 if self.objective == "next_token" else 2

    @property
    def forward_passes(self) -> int:
        """1, or 2 where a reference model runs forward too."""
        return 2 if self.objective == "dpo" else 1

    def sample_length(self, model: ModelConfig) -> int:
        """Tokens of a sample, with padding."""
        return self.sequences_per_sample * model.sequence_length

    def check(self, model: ModelConfig) -> None:
        """Check that `model` can be cut this way. UsageError where `tp` does not divide the attention heads, key-value
        heads or MLP width (with sequence parallelism also the sequence), or another degree its dimension; where
        `layer_counts` do not add up to the layers; for `cp` or `attention_kernel` without fused attention, `ep`
        without experts, and experts with `tp` but without sequence parallelism.
        """
        self._check_cuts(model)
        self._check_kinds(model)
        self._check_expert_tokens(model)
        if self.layer_counts is not None and sum(self.layer_counts) != model.layers:
            raise UsageError(
                f"layer_counts add up to {sum(self.layer_counts)}, expected {model.layers}, "
                f"the layers of model {model.name}",
                field="layer_counts",
            )

    def _check_cuts(self, model: ModelConfig) -> None:
        cuts = [("tp", "tp", self.tp, name) for name in ("attention_heads", "kv_heads", "mlp_size")]
        if self.sequence_parallel:
            cuts.append(("tp", "tp", self.tp, "sequence_length"))
        if self.cp > 1:
            # An early and a late part for every device, each of whole tokens for every device of its tp group.
            parts = 2 * self.cp * (self.tp if self.sequence_parallel else 1)
            product = "2 · cp · tp" if self.sequence_parallel else "2 · cp"
            cuts.append(("cp", product, parts, "sequence_length"))
        if self.context_exchange == "all_to_all":
            cuts.append(("cp", "cp · tp", self.cp * self.tp, "kv_heads"))
        if model.recurrent_groups:
            # Context parallelism exchanges heads for tokens.
            cuts.append(("tp", "tp · cp" if self.cp > 1 else "tp", self.tp * self.cp, "recurrent_groups"))
        if model.experts:
            cuts.append(("ep", "ep", self.ep, "experts"))
            cuts.append(("expert_tp", "expert_tp", self.expert_tp, "expert_width"))
            if model.shared_expert_size:
                cuts.append(("tp", "tp", self.tp, "shared_expert_size"))
        for name, product, parts, of in cuts:
            size = getattr(model, of)
            if size % parts:
                divisor = f"a divisor of {of} ({size}) of model {model.name}"
                raise UsageError(field=name, subject=product, found=parts, expected=divisor)

    def _check_kinds(self, model: ModelConfig) -> None:
        unfused = f"with attention {model.attention!r} of model {model.name}"
        is_fused, is_measured = model.attention == "flash", self.attention_kernel == AS_MEASURED
        is_cut = self.sequence_parallel or self.tp == 1 or not model.experts
        routes = f"each device routes its own tokens to the experts of model {model.name}"
        checks: list[tuple[str, object, str]] = [
            ("cp", is_fused or self.cp == 1, f"1 {unfused}: sequences are cut for attention 'flash' only"),
            ("attention_kernel", is_fused or is_measured, f"{AS_MEASURED} {unfused}: it is no fused kernel"),
            ("sequence_parallel", is_cut, f"true with tp {self.tp}: {routes}"),
        ]
        if self.lora_rank:
            has = model.target_modules
            own = either([one for one in LAYOUT["lora_linears"].kind.schema["items"]["enum"] if one in has])
            is_there = not has.isdisjoint(self.lora_linears)
            checks.append(("lora_linears", is_there, f"{own} in model {model.name}"))
        for name in () if model.experts else _OF_EXPERTS:
            usual = LAYOUT[name].default
            without = f"{str(usual).lower()}: model {model.name} has no experts"
            checks.append((name, getattr(self, name) == usual, without))
        self._require(checks)


_EVERY = attrgetter(*LAYOUT)
_SETTERS = [getattr(Parallelism, name).__set__ for name in LAYOUT]


@cache
def _defaults() -> Mapping[str, Any]:
    """The defaults of all fields; one device, and one micro-batch of one sample, for fields without a default."""
    return {
        name: 1 if one.default is None and one.is_required else one.default for name, one in LAYOUT.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The nodes that a job runs on: g = `gpus_per_node` devices each, 1 or more (UsageError)."""

    gpus_per_node: int

    def __post_init__(self) -> None:
        REQUEST["gpus_per_node"].check(self.gpus_per_node)


def read_layout(values: Mapping[str, Any]) -> Parallelism:
    """The layout of `values`, whose other fields do not matter. Degrees that are not given are 1. UsageError where a
    field is missing or wrong, or micro_batches and global_batch are both given.
    """
    given = {name: values.get(name, LAYOUT[name].default) for name in LAYOUT}
    if "micro_batch" not in values:
        expected = LAYOUT["micro_batch"].kind.expected
        raise UsageError(f"micro_batch is not given, expected {expected}", field="micro_batch")
    if ("micro_batches" in values) == ("global_batch" in values):
        found = "{} and {} are both" if "micro_batches" in values else "neither {} nor {} is"
        fields = ("micro_batches", "global_batch")
        raise UsageError(f"{found} given, expected one of them", fields=fields)
    if isinstance(given["layer_counts"], list):
        given["layer_counts"] = tuple(given["layer_counts"])
    if "global_batch" in values:
        del given["micro_batches"]
        return Parallelism.from_global_batch(global_batch=values["global_batch"], **given)
    return Parallelism(**given)


def read_request(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `Estimator.predict` apart from the model; errors as `read_layout`."""
    options = {name: values.get(name, REQUEST[name].default) for name in ("bucket_entries", "timeline")}
    options |= {name: values[name] for name in MEMORY if name in values}
    for name, value in options.items():
        (MEMORY.get(name) or REQUEST[name]).check(value)
    return {
        "parallelism": read_layout(values),
        "cluster": Cluster(gpus_per_node=values["gpus_per_node"]) if "gpus_per_node" in values else None,
        **options,
    }
