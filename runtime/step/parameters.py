"""The parameters of a stage (eq. 6, Table III) and of a whole model, added up from the ops of its layers."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.chunks import kinds_of
from kernelcast.runtime.step.layers.loss import LOGITS, embedding, loss, vocabulary_matrix
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.op import Number, Ops
from kernelcast.runtime.step.sizes import Sizes


class HeldParameters(NamedTuple):
    """Parameters on one device: trained ones that all replicas hold, trained ones of its experts, and frozen ones."""

    dense: Number = 0
    experts: Number = 0
    frozen: Number = 0
    frozen_experts: Number = 0

    @property
    def total(self) -> Number:
        """Trained and frozen ones."""
        return self.dense + self.experts + self.frozen + self.frozen_experts

    @property
    def whole(self) -> "HeldParameters":
        """The same without the difference between trained and frozen ones."""
        return HeldParameters(self.dense + self.frozen, self.experts + self.frozen_experts)


def held_parameters(s: Sizes, ops: Ops) -> HeldParameters:
    """Parameters of some ops; with LoRA all but the adapters' are frozen."""
    dense: Number = 0
    experts: Number = 0
    adapters: Number = 0
    for one in ops:
        if one.is_adapter:
            adapters = adapters + one.parameters
        elif one.is_expert:
            experts = experts + one.parameters
        else:
            dense = dense + one.parameters
    return (
        HeldParameters(adapters, 0 * experts, dense, experts)
        if s.is_frozen
        else HeldParameters(dense, experts)
    )


class PartParameters(NamedTuple):
    """Parameters on one device of both ends, and of a layer of each kind; `tied` ones are shared by both ends on one
    stage, `copied` ones of the first end are needed by a last end elsewhere.
    """

    first: HeldParameters
    last: HeldParameters
    layers: tuple[HeldParameters, ...]
    tied: Number
    copied: Number
    are_frozen: bool

    @classmethod
    def of(cls, s: Sizes, only: str = "", layers: Sequence[Ops] = ()) -> "PartParameters":
        """Parameters of the model that `s` are sizes of, or of its ops named `only`; `layers` are known ops by kind."""
        model, matrix = s.model, vocabulary_matrix(s)
        layers = layers or [transformer_layer(s.of_kind(kind)) for kind in kinds_of(model).distinct]

        def held(ops: Ops) -> HeldParameters:
            return held_parameters(s, tuple(one for one in ops if only in ("", one.name)))

        is_copied = model.extra_predictions and not model.tied_embeddings and only in ("", "embedding")
        return cls(
            first=held(embedding(s)),
            last=held(loss(s)),
            layers=tuple(map(held, layers)),
            tied=matrix if model.tied_embeddings and only in ("", LOGITS) else 0,
            copied=matrix if is_copied else 0,
            are_frozen=s.is_frozen,
        )

    def of_stage(self, *, layers: Sequence[Number], first: Number, last: Number) -> HeldParameters:
        """Parameters of a stage with `layers` of each kind; `first` and `last` (0 or 1) are the ends that it holds. A
        single stage holds tied embeddings once, else both ends a copy, as do predictions of further tokens.
        """
        parts = [*zip((first, last, *layers), (self.first, self.last, *self.layers), strict=True)]
        sums = [sum(count * part[which] for count, part in parts) for which in range(4)]
        shared = (1 - first) * last * self.copied - first * last * self.tied
        sums[2 if self.are_frozen else 0] = sums[2 if self.are_frozen else 0] + shared
        return HeldParameters(*sums)


def total_parameters(model: ModelConfig) -> int:
    """Parameters of the whole model as published: no padding, no layers that predict further tokens."""
    return _total(model, lambda held: held.total)


def active_parameters(model: ModelConfig) -> int:
    """Parameters that one token uses: of experts, the ones that it is sent to."""
    return _total(
        model, lambda held: held.dense + held.experts * model.experts_per_token // max(1, model.experts)
    )


def _total(model: ModelConfig, of_layer: Callable[[HeldParameters], Number]) -> int:
    model = replace(model, extra_predictions=0)
    s, kinds = Sizes.alone(model), kinds_of(model)
    parts = PartParameters.of(s)
    ends = parts.of_stage(layers=(0,) * len(kinds.distinct), first=1, last=1).dense
    counts = kinds.counts(0, model.layers)
    layers = sum(count * of_layer(held) for count, held in zip(counts, parts.layers, strict=True))
    matrices = 1 if model.tied_embeddings else 2
    padding = (s.vocabulary - model.vocabulary_size) * model.hidden_size
    return int(ends + layers - matrices * padding)
