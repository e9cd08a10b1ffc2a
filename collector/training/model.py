"""A decoder-only transformer that trains for real, cut into chunks of a pipeline and shards of a tensor-parallel group.

Embedding, layers and logits are the lists of ops that predictions price (runtime/step/layers), run op by op. Weights
depend on their name and the seed alone: the model is the same in every layout.
"""

from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Literal

from torch import Tensor, nn

from kernelcast.collector.functions.vocabulary_parallel import vocabulary_parallel_cross_entropy
from kernelcast.collector.training.groups import Shard
from kernelcast.collector.training.job import TrainingJob
from kernelcast.collector.training.layer import Layer, Tables, checkpointed, random_weight
from kernelcast.collector.training.marks import operator_mark
from kernelcast.runtime.step.chunks import kept_layers, kinds_of
from kernelcast.runtime.step.layers.loss import CROSS_ENTROPY, embedding, loss
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.op import Ops
from kernelcast.runtime.step.sizes import Sizes


class Chunk(nn.Module):
    """Layers of chunk `number` of a job; the first chunk also embeds tokens, the last also computes logits."""

    def __init__(
        self, job: TrainingJob, number: int, shard: Shard, *, loss_scale: float = 1.0, seed: int = 0
    ) -> None:
        super().__init__()
        layout, counts, kinds = job.parallelism, job.chunk_layers, kinds_of(job.model)
        first, count = sum(counts[:number]), counts[number]
        # Attention and MLP share sums on paper only; training needs all of them.
        forward_syncs = 1 if job.model.parallel_residual else 2
        model = replace(job.model, forward_syncs=forward_syncs, backward_syncs=2)
        sizes = Sizes(model=model, layout=layout)
        layer = partial(
            Layer,
            shard=shard,
            tables=Tables(job.model, shard.context),
            recomputed=layout.recompute_modules if layout.recompute == "selective" else (),
            loss_scale=loss_scale,
        )
        self.embedding = (
            layer(embedding, sizes, weights=partial(random_weight, seed, "")) if number == 0 else None
        )
        self.layers = nn.ModuleList(
            layer(
                transformer_layer,
                sizes.of_kind(kinds.distinct[kinds.of_layer[index]]),
                weights=partial(random_weight, seed, f"layer {index}."),
            )
            for index in range(first, first + count)
        )
        self.logits = (
            layer(_logits, sizes, weights=partial(random_weight, seed, ""))
            if number == len(counts) - 1
            else None
        )
        self._recomputed = count - kept_layers(layout, count) if layout.recompute == "full" else 0
        self._group, self._first_row = shard.group, shard.of(job.vocabulary_size).start

    def parameters_of(self, kind: Literal["replicated", "experts"]) -> list[nn.Parameter]:
        """Parameters that every device of the tensor-parallel group has whole, or of this device's experts."""
        layers = (module for module in self.modules() if isinstance(module, Layer))
        return [layer.get_parameter(f"weights.{name}") for layer in layers for name in getattr(layer, kind)]

    def forward(self, x: Tensor) -> Tensor:
        """Token ids [b, l] in the first chunk, else activations [b, l, d] → activations, or logits [b, l, v / tp]."""
        if self.embedding is not None:
            x = self.embedding(x)
        for index, layer in enumerate(self.layers):
            x = checkpointed(layer, x, when=index < self._recomputed)
        return x if self.logits is None else self.logits(x)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of logits [b, l, v / tp] against targets [b, l]."""
        with operator_mark("cross_entropy"):
            return vocabulary_parallel_cross_entropy(logits, targets, self._first_row, self._group).mean()


def _logits(s: Sizes) -> Ops:
    """The ops before the loss, which a pipeline's schedule runs."""
    return tuple(takewhile(lambda one: one.name != CROSS_ENTROPY, loss(s)))
