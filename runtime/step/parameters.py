"""The parameters of a stage (eq. 6, Table III) and of a whole model, added up from its layers."""

from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.layers.embedding import Embedding
from kernelcast.runtime.step.layers.loss import Loss
from kernelcast.runtime.step.layers.sizes import Number, Sizes
from kernelcast.runtime.step.layers.transformer_layer import TransformerLayer


def stage_parameters(sizes: Sizes, *, layers: Number, first: Number, last: Number) -> Number:
    """Parameters of a stage on one device; `first` and `last` (0 or 1) are the ends of the model that it holds.

    A single stage is both, and then holds tied embeddings once; else both ends hold a copy, as pipelines do.
    """
    embedding, loss = Embedding(sizes), Loss(sizes)
    shared = first * last * loss.matrix if sizes.model.tied_embeddings else 0
    ends = first * embedding.parameters + last * loss.parameters
    return layers * TransformerLayer(sizes).parameters + ends - shared


def total_parameters(model: ModelConfig) -> int:
    """Parameters of the whole model as published ones are counted: the tokenizer's vocabulary, nothing padded."""
    sizes = Sizes(model=model)
    matrices = 1 if model.tied_embeddings else 2
    padding = (sizes.vocabulary - model.vocabulary_size) * model.hidden_size
    return int(stage_parameters(sizes, layers=model.layers, first=1, last=1) - matrices * padding)
