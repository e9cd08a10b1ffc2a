"""What layers and ends of the model hold on one device: told once for all rows whose devices hold the same sizes.

Thousands of layouts have a few dozen sizes: stages, schedules and replicas do not change what a layer holds.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.memory.rows import of_all
from kernelcast.runtime.request.fields import LossKind, ModuleKind, RecomputeModule
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.expert_load import ExpertLoad
from kernelcast.runtime.step.layers.embedding import Embedding
from kernelcast.runtime.step.layers.kinds import kinds_of
from kernelcast.runtime.step.layers.linear import Linears
from kernelcast.runtime.step.layers.loss import Loss
from kernelcast.runtime.step.layers.modules import MODULES
from kernelcast.runtime.step.layers.sizes import Kept, Number, Sizes
from kernelcast.runtime.step.layers.transformer_layer import TransformerLayer
from kernelcast.runtime.step.parameters import PartParameters, layer_of


class LayerContents(NamedTuple):
    """A transformer layer: bytes for one micro-batch, entries for weights, each float64 [rows] or a number.

    - `block_input`, and what is `kept` beside it; `dropped` of it by selective recomputation, of attention and of the
      MLP's half; `mlp` is all that this half keeps; `late` what late weight gradients wait with;
    - gradients on their way: of attention, at the MLP's projection down and at its activation;
    - `buffers` whatever the micro-batch;
    - `parameters`, those of `adapters`, the entries of weight `matrices`, and those `cast` to 8 bit.
    """

    block_input: Number
    kept: Number
    dropped: tuple[Number, Number]
    mlp: Number
    late: Number
    attention_gradient: Number
    at_projection: Number
    at_activation: Number
    buffers: Number
    parameters: Number
    adapters: Number
    matrices: Number
    cast: Number

    @classmethod
    def of(cls, layer: TransformerLayer, kept: Kept, dropped: tuple[RecomputeModule, ...]) -> Self:
        """Of a layer from which selective recomputation drops these modules."""
        at_projection, at_activation = layer.mlp.gradient_bytes(kept)
        return cls(
            block_input=layer.input_bytes(kept),
            kept=layer.kept_bytes(kept),
            dropped=_dropped(layer, kept, dropped),
            mlp=layer.mlp_bytes(kept),
            late=layer.weight_gradient_bytes(kept),
            attention_gradient=layer.attention.gradient_bytes(kept),
            at_projection=at_projection,
            at_activation=at_activation,
            buffers=layer.attention.buffer_bytes,
            parameters=layer.parameters,
            adapters=layer.adapter_parameters,
            matrices=1.0 * layer.matrices,
            cast=layer.cast_entries,
        )


class LossContents(NamedTuple):
    """The last end: bytes for one micro-batch, and entries of its matrix, each float64 [rows] or a number.

    `late` are gradients of logits that wait for late weight gradients; `gradients` those at the loss, and after it.
    """

    kept: Number
    logits: Number
    late: Number
    log_probabilities: Number
    gradients: tuple[Number, Number]
    matrix: Number
    cast: Number


class Contents(NamedTuple):
    """All that stages are put together from: a layer of each kind, both ends, and their parameters.

    `embedding` is what the first end keeps; `tokens` are those of a micro-batch, `gathered` the bytes of its
    activations where sequence parallelism puts them together.
    """

    kept: Kept
    layers: tuple[LayerContents, ...]
    loss: LossContents
    embedding: Number
    parameters: PartParameters
    tokens: Number
    gathered: Number

    @classmethod
    def of(
        cls, model: ModelConfig, columns: Mapping[str, Number], common: Mapping[str, Any], kept: Kept
    ) -> "Contents":
        """Those of layouts with the fields `OF_SIZES` in `columns`, float64 [rows], and `COMMON` fields for all."""
        sizes = Sizes.of_columns(
            model,
            columns,
            vocabulary_multiple=of_all(common, "vocabulary_multiple"),
            imbalance=ExpertLoad.of(partial(of_all, common)).in_memory(model.experts, columns["ep"]),
            linears=Linears.of(partial(of_all, common)),
        )
        dropped, loss = of_all(common, "recompute_modules"), Loss(sizes)
        return cls(
            kept=kept,
            layers=tuple(
                LayerContents.of(layer_of(sizes, kind), kept, dropped) for kind in kinds_of(model).distinct
            ),
            loss=LossContents(
                kept=loss.kept_bytes(kept),
                logits=loss.logit_bytes(kept),
                late=kept.element * loss.logits,
                log_probabilities=loss.log_probability_bytes(kept),
                gradients=loss.gradient_bytes(kept),
                matrix=loss.matrix,
                cast=loss.cast_entries,
            ),
            embedding=Embedding(sizes).kept_bytes(kept),
            parameters=PartParameters.of(sizes),
            tokens=sizes.tokens,
            gathered=sizes.sequence_parallel * kept.element * sizes.tokens * sizes.hidden,
        )

    def at(self, rows: NDArray[np.intp]) -> "Contents":
        """Those at `rows`."""
        found: Contents = _at(self, rows)
        return found


def kept_in(
    common: Mapping[str, Any], element: int, loss: LossKind, kept_by: ModuleKind, *, is_cpu: bool = False
) -> Kept:
    """How activations of `element` bytes per entry are kept."""
    # Dropout's masks are a byte per entry; on a CPU torch runs it in pieces, and masks are tensors like any other.
    mask = (element if is_cpu else 1) if of_all(common, "dropout") else 0
    return Kept(element=element, mask=mask, is_cpu=is_cpu, loss=loss, modules=MODULES[kept_by])


def _dropped(
    layer: TransformerLayer, kept: Kept, modules: tuple[RecomputeModule, ...]
) -> tuple[Number, Number]:
    core = layer.attention.core_bytes(kept) if "core_attn" in modules else 0.0
    norms = (
        layer.norm_bytes(kept, read_by) if "layernorm" in modules else 0.0
        for read_by in ("attention", layer.mlp.input_kind)
    )
    of_attention, of_mlp = norms
    return core + of_attention, of_mlp + (layer.mlp.kept_bytes(kept) if "mlp" in modules else 0.0)


def _at(value: Any, rows: NDArray[np.intp]) -> Any:
    """The same with every array at `rows`."""
    if isinstance(value, np.ndarray):
        return value[rows]
    if not isinstance(value, tuple):
        return value
    parts = [_at(part, rows) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
