"""The kinds of transformer layers of a model, and the kind of each layer."""

from collections import Counter
from functools import lru_cache
from typing import Literal, NamedTuple, cast

from kernelcast.runtime.request.fields import LAYER_PARTS, Mixer
from kernelcast.runtime.request.model import ModelConfig


class LayerKind(NamedTuple):
    """What one layer of a model has that another one has not: routed experts, a window of attention (0: none).

    `rotates`: whether its queries and keys are rotated, in a model with rotary embedding. `mixer` is what mixes tokens;
    layers of one part (Nemotron-H) have none, or neither an MLP nor experts (`has_mlp`: either).
    """

    has_experts: bool = False
    window: int = 0
    rotates: bool = True
    mixer: Mixer | Literal[""] = "attention"
    has_mlp: bool = True


DENSE = LayerKind()
"""An MLP, and attention to all tokens before."""


class LayerKinds(NamedTuple):
    """The distinct kinds of a model's layers, the most frequent first, and the position in them of every layer."""

    distinct: tuple[LayerKind, ...]
    of_layer: tuple[int, ...]

    def counts(self, first: int, until: int) -> tuple[int, ...]:
        """Layers of each kind from number `first` to before number `until`."""
        if len(self.distinct) == 1:
            return (until - first,)
        own = self.of_layer[first:until]
        return tuple(own.count(kind) for kind in range(len(self.distinct)))


@lru_cache(maxsize=64)
def kinds_of(model: ModelConfig) -> LayerKinds:
    """The kinds of a model's layers."""
    parts = model.layer_parts
    layers = [
        _of_parts(model, index, parts[index]) if parts else _kind(model, index)
        for index in range(model.layers)
    ]
    distinct = tuple(kind for kind, _ in Counter(layers).most_common())
    return LayerKinds(distinct, tuple(distinct.index(kind) for kind in layers))


def _kind(model: ModelConfig, index: int) -> LayerKind:
    after_dense = index - model.dense_layers
    has_experts = bool(model.experts) and after_dense >= 0 and (after_dense + 1) % model.expert_interval == 0
    is_global = bool(model.global_interval) and (index + 1) % model.global_interval == 0
    has_window = 0 < model.sliding_window < model.sequence_length and not is_global
    rotates = not (model.unrotated_interval and (index + 1) % model.unrotated_interval == 0)
    return LayerKind(has_experts, model.sliding_window if has_window else 0, rotates)


def _of_parts(model: ModelConfig, index: int, letters: str) -> LayerKind:
    """The kind of a layer by the letters of its parts."""
    mixer = cast(Mixer, "".join(LAYER_PARTS[letter] for letter in letters if letter not in "-E"))
    kind = _kind(model, index) if mixer == "attention" else LayerKind(mixer=mixer)
    return kind._replace(has_experts="E" in letters, has_mlp="E" in letters or "-" in letters)
