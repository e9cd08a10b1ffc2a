"""The parameters of a stage (eq. 6, Table III) and of a whole model, added up from its layers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.layers.embedding import Embedding
from kernelcast.runtime.step.layers.kinds import LayerKind, kinds_of
from kernelcast.runtime.step.layers.loss import Loss
from kernelcast.runtime.step.layers.sizes import Layer, Number, Sizes
from kernelcast.runtime.step.layers.transformer_layer import TransformerLayer


class HeldParameters(NamedTuple):
    """Trained parameters on one device: those that all replicas hold, and those of its experts; and frozen ones."""

    dense: Number
    experts: Number
    frozen: Number = 0
    frozen_experts: Number = 0

    @property
    def total(self) -> Number:
        """All of them."""
        return self.dense + self.experts + self.frozen + self.frozen_experts

    @property
    def whole(self) -> "HeldParameters":
        """The same without the difference between trained and frozen ones."""
        return HeldParameters(self.dense + self.frozen, self.experts + self.frozen_experts)

    def with_adapters(self, adapters: Number) -> "HeldParameters":
        """Adapters beside these, which are frozen."""
        return HeldParameters(adapters, 0 * self.experts, self.dense, self.experts)


def held_by(layer: Layer) -> HeldParameters:
    """Those of one layer."""
    held = HeldParameters(layer.parameters - layer.expert_parameters, layer.expert_parameters)
    return held.with_adapters(layer.adapter_parameters) if layer.sizes.linears.is_frozen else held


def layer_of(sizes: Sizes, kind: LayerKind) -> TransformerLayer:
    """A layer of one kind."""
    return TransformerLayer(sizes.of_kind(kind))


class PartParameters(NamedTuple):
    """Parameters on one device of the parts that stages are put together from.

    Those of both ends (of the last, its experts' apart) and of a layer of each kind, which are of all replicas, of
    experts, and of adapters. `tied` are those that both ends share where a stage is both, `copied` those of the first
    end that the last one needs too where it is another stage.
    """

    first: Number
    last: tuple[Number, Number, Number]
    layers: tuple[tuple[Number, Number, Number], ...]
    tied: Number
    copied: Number
    are_frozen: bool

    @classmethod
    def of(cls, sizes: Sizes) -> "PartParameters":
        """Of the model that `sizes` are of."""
        embedding, loss, model = Embedding(sizes), Loss(sizes), sizes.model
        layers = (layer_of(sizes, kind) for kind in kinds_of(model).distinct)
        return cls(
            first=embedding.parameters,
            last=_apart(loss),
            layers=tuple(_apart(layer) for layer in layers),
            tied=loss.matrix if model.tied_embeddings else 0,
            copied=embedding.matrix if model.extra_predictions and not model.tied_embeddings else 0,
            are_frozen=sizes.linears.is_frozen,
        )

    def of_stage(self, *, layers: Sequence[Number], first: Number, last: Number) -> HeldParameters:
        """Parameters of a stage; `first` and `last` (0 or 1) are the ends of the model that it holds.

        `layers` are those of each kind. A single stage is both ends, and then holds tied embeddings once; else both
        ends hold a copy, as pipelines do. Predictions of further tokens belong to the last end, and need a copy too.
        """
        parts = list(zip((last, *layers), (self.last, *self.layers), strict=True))
        dense, experts, adapters = (sum(count * part[which] for count, part in parts) for which in range(3))
        dense = first * self.first + dense - first * last * self.tied + (1 - first) * last * self.copied
        held = HeldParameters(dense, experts + 0 * dense)
        return held.with_adapters(adapters + 0 * dense) if self.are_frozen else held


def _apart(layer: Layer) -> tuple[Number, Number, Number]:
    experts = layer.expert_parameters
    return layer.parameters - experts, experts, layer.adapter_parameters


def stage_parameters(
    sizes: Sizes, *, layers: Sequence[Number], first: Number, last: Number
) -> HeldParameters:
    """Parameters of a stage on one device (`PartParameters.of_stage`)."""
    return PartParameters.of(sizes).of_stage(layers=layers, first=first, last=last)


def total_parameters(model: ModelConfig) -> int:
    """Parameters of the whole model as published ones are counted: the tokenizer's vocabulary, nothing padded.

    Layers that predict further tokens are not among them.
    """
    return _total(model, lambda layer: layer.parameters)


def active_parameters(model: ModelConfig) -> int:
    """Those that one token uses: of experts, the ones that it is sent to."""

    def of(layer: TransformerLayer) -> Number:
        experts = layer.expert_parameters
        return layer.parameters - experts + experts * model.experts_per_token // max(1, model.experts)

    return _total(model, of)


def _total(model: ModelConfig, of_layer: Callable[[TransformerLayer], Number]) -> int:
    model = replace(model, extra_predictions=0)
    sizes, kinds = Sizes(model=model), kinds_of(model)
    ends = stage_parameters(sizes, layers=(0,) * len(kinds.distinct), first=1, last=1).dense
    layers = sum(
        count * of_layer(layer_of(sizes, kind))
        for kind, count in zip(kinds.distinct, kinds.counts(0, model.layers), strict=True)
    )
    matrices = 1 if model.tied_embeddings else 2
    padding = (sizes.vocabulary - model.vocabulary_size) * model.hidden_size
    return int(ends + layers - matrices * padding)
