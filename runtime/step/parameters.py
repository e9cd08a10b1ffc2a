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


def stage_parameters(
    sizes: Sizes, *, layers: Sequence[Number], first: Number, last: Number
) -> HeldParameters:
    """Parameters of a stage on one device; `first` and `last` (0 or 1) are the ends of the model that it holds.

    `layers` are those of each kind. A single stage is both ends, and then holds tied embeddings once; else both ends
    hold a copy, as pipelines do. Predictions of further tokens belong to the last end, and need a copy too.
    """
    embedding, loss, model = Embedding(sizes), Loss(sizes), sizes.model
    shared = first * last * loss.matrix if model.tied_embeddings else 0
    copied = (
        (1 - first) * last * embedding.matrix if model.extra_predictions and not model.tied_embeddings else 0
    )
    experts = last * loss.expert_parameters
    dense = first * embedding.parameters + last * loss.parameters - experts - shared + copied
    adapters = last * loss.adapter_parameters + 0 * dense
    for kind, count in zip(kinds_of(model).distinct, layers, strict=True):
        layer = layer_of(sizes, kind)
        dense = dense + count * (layer.parameters - layer.expert_parameters)
        experts = experts + count * layer.expert_parameters
        adapters = adapters + count * layer.adapter_parameters
    held = HeldParameters(dense, experts)
    return held.with_adapters(adapters) if sizes.linears.is_frozen else held


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
