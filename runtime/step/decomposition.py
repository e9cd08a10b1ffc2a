"""A training step taken apart: which operator a stage calls, on what, how often (docs/method.md, A step).

What a chunk of the model costs follows from the times of its blocks, see chunk_times.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from kernelcast.runtime.request.fields import OPTIONS, Recompute
from kernelcast.runtime.request.layout import Cluster, Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.calls import Call, Calls, Component, backward, call, forward
from kernelcast.runtime.step.groups import data_group, pipeline_pair, shard_groups
from kernelcast.runtime.step.layers.embedding import Embedding
from kernelcast.runtime.step.layers.loss import Loss
from kernelcast.runtime.step.layers.sizes import Beside, Layer, Sizes
from kernelcast.runtime.step.layers.transformer_layer import TransformerLayer
from kernelcast.runtime.step.layers.update import DataParallel, Update, gradient_bytes
from kernelcast.runtime.step.parameters import stage_parameters
from kernelcast.runtime.step.partition import layers_of_chunks

# A search of tens of thousands of layouts asks for some dozens; a server keeps as many as it is let.
_REMEMBERED = 1 << 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One kind of block of the model (a transformer layer, or an end) for one micro-batch.

    With ZeRO-3, `gather` fetches its parameters before either pass; with ZeRO-2 and 3, `scatter` sums and splits its
    gradients after the backward pass. Otherwise they are empty. `beside` are tensor-parallel collectives that run
    beside products, first those of the forward pass (`beside_forward` of them).
    """

    forward: Calls
    backward: Calls
    beside: tuple[Beside, ...]
    beside_forward: int
    gather: Calls
    scatter: Calls


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKind:
    """Stages that have the same update: their number of layers, and which ends of the model they hold."""

    layers: int
    first: bool
    last: bool

    @property
    def optimizer_role(self) -> str:
        """The role of its optimizer step; a single stage, first and last at once, is the last."""
        return "last_stage" if self.last else "first_stage" if self.first else "middle_stage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of the model that passes run through at once; without virtual stages it is the stage."""

    index: int
    stage: int
    layers: int
    first: bool
    last: bool


def chunks_of(model: ModelConfig, parallelism: Parallelism) -> tuple[Chunk, ...]:
    """The chunks of a layout in the order of the model; chunk c runs on stage c mod pp.

    Raises:
        UsageError: more chunks than the model's layers allow.
    """
    counts = layers_of_chunks(model.layers, parallelism)
    return tuple(
        Chunk(
            index=index,
            stage=index % parallelism.pp,
            layers=count,
            first=index == 0,
            last=index == len(counts) - 1,
        )
        for index, count in enumerate(counts)
    )


@lru_cache(maxsize=_REMEMBERED)
def _passes(kind: type[Layer], sizes: Sizes, recompute: Recompute) -> tuple[Calls, Calls, tuple[Beside, ...]]:
    """Forward and backward calls of one layer, and its collectives beside products.

    What recomputation runs again of a transformer layer stands last.
    """
    layer = kind(sizes)
    again = layer.recomputed(recompute) if isinstance(layer, TransformerLayer) else ()
    # As many for every layout of a search: without recomputation they are empty.
    forward_again = [
        one._replace(component=Component.BESIDE_BACKWARD) if recompute == "full" else Beside(in_pieces=True)
        for one in layer.beside_forward
    ]
    return (
        forward((*layer.calls, *layer.forward_collectives)),
        (*backward(layer.calls), *forward(layer.backward_collectives), *again),
        (*layer.beside_forward, *layer.beside_backward, *forward_again),
    )


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    """A step of `model` as operator calls.

    Point-to-point transfers are charged to the sender: forward after all but the last chunk, backward after all
    but the first. Data-parallel collectives over more than `bucket_entries` entries become full buckets and
    a remainder. Degrees of 1 call no collective. `element_bytes` are those of the type that is trained in, which is
    that of the operators.
    """

    model: ModelConfig
    parallelism: Parallelism
    cluster: Cluster
    bucket_entries: int
    element_bytes: int = 2

    @cached_property
    def sizes(self) -> Sizes:
        """What one device holds."""
        return Sizes.of(self.model, self.parallelism, self.cluster)

    @cached_property
    def data_parallel(self) -> DataParallel:
        """How data parallelism shards."""
        layout = self.parallelism
        shard, copies = shard_groups(layout, self.cluster)
        return DataParallel(
            dp=layout.replicas,
            zero=layout.zero,
            group=data_group(layout, self.cluster),
            bucket_entries=self.bucket_entries,
            gradient_width=gradient_bytes(layout.reduce_dtype, self.element_bytes) // self.element_bytes,
            shard_group=shard,
            copy_group=copies,
            scatters=layout.gradient_collective == "reduce_scatter",
            overlaps_gradients=layout.overlap_gradients,
            overlaps_parameters=layout.overlap_parameters,
            overlap_bucket=layout.overlap_bucket,
        )

    @cached_property
    def layer(self) -> Block:
        """One transformer layer."""
        return self._block(TransformerLayer)

    @cached_property
    def first(self) -> Block:
        """The embedding."""
        return self._block(Embedding)

    @cached_property
    def last(self) -> Block:
        """Final norm, logits and loss."""
        return self._block(Loss)

    def _block(self, kind: type[Layer]) -> Block:
        forward_calls, backward_calls, beside = _passes(kind, self.sizes, self.parallelism.recompute)
        gather: Calls = ()
        scatter: Calls = ()
        if self.is_sharded:
            parameters = kind(self.sizes).parameters
            gather, scatter = self.data_parallel.gather(parameters), self.data_parallel.scatter(parameters)
        return Block(
            forward=forward_calls,
            backward=backward_calls,
            beside=beside,
            beside_forward=len(kind(self.sizes).beside_forward),
            gather=gather,
            scatter=scatter,
        )

    @cached_property
    def send(self) -> Calls:
        """One transfer of a micro-batch's activations, or of their gradients, to a neighbouring stage."""
        if self.parallelism.chunks == 1:
            return ()
        pair, entries = pipeline_pair(self.parallelism, self.cluster), self.sizes.sent_entries
        return (call("point_to_point", entries, pair.nodes, pair.gpus_per_node, role="pipeline"),)

    def update(self, stage: StageKind) -> Update:
        """The update of a kind of stage."""
        update = self.data_parallel.update(stage.optimizer_role, self.parameters(stage), stage.layers)
        # Of tied embeddings in a pipeline both ends hold a copy, whose gradients are summed between them.
        is_copy = self.model.tied_embeddings and stage.first != stage.last
        if is_copy and self.parallelism.overlap_gradients:
            # Not beside a pass: they wait for all replicas' gradients.
            return replace(update, optimizer=self._tied + update.optimizer)
        return replace(update, gradients=update.gradients + self._tied) if is_copy else update

    @property
    def _tied(self) -> Calls:
        pair = pipeline_pair(self.parallelism, self.cluster)
        entries = Embedding(self.sizes).matrix * self.data_parallel.gradient_width
        return (call("all_reduce", entries, pair.nodes, pair.gpus_per_node, role="data"),)

    def parameters(self, stage: StageKind) -> int:
        """Parameters on one device of a kind of stage."""
        return int(stage_parameters(self.sizes, layers=stage.layers, first=stage.first, last=stage.last))

    @property
    def is_sharded(self) -> bool:
        """Whether blocks give their gradients away in every micro-batch (ZeRO-2 and 3)."""
        return self.parallelism.zero >= 2 and self.parallelism.replicas > 1

    @property
    def is_split(self) -> bool:
        """Whether the backward pass is cut into input and weight gradients (zero-bubble)."""
        return self.parallelism.schedule == "zero_bubble"

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks in the order of the model."""
        return chunks_of(self.model, self.parallelism)

    @cached_property
    def stages(self) -> tuple[StageKind, ...]:
        """The kind of every stage."""
        return stage_kinds(self.chunks, self.parallelism.pp)

    def calls(self, stage: int) -> Iterator[tuple[Component, Call]]:
        """What a stage calls for one micro-batch, and then once per update, with the component it belongs to."""
        for chunk in self.chunks[stage :: self.parallelism.pp]:
            if chunk.first:
                yield from _of_block(self.first, Component.ENDS_FORWARD, Component.ENDS_BACKWARD)
            if chunk.layers:
                layer = _of_block(self.layer, Component.LAYER_FORWARD, Component.LAYER_BACKWARD)
                yield from ((component, one.times(chunk.layers)) for component, one in layer)
            if chunk.last:
                yield from _of_block(self.last, Component.ENDS_FORWARD, Component.ENDS_BACKWARD)
            if not chunk.last:
                yield from ((Component.SEND_FORWARD, one) for one in self.send)
            if not chunk.first:
                yield from ((Component.SEND_BACKWARD, one) for one in self.send)
        update = self.update(self.stages[stage])
        yield from ((Component.ALL_REDUCE, one) for one in update.gradients)
        yield from ((Component.OPTIMIZER, one) for one in update.optimizer)
        yield from ((Component.ALL_GATHER, one) for one in update.gather)


def stage_kinds(chunks: tuple[Chunk, ...], pp: int) -> tuple[StageKind, ...]:
    """The kind of every stage of a pipeline."""
    of_stage = [chunks[stage::pp] for stage in range(pp)]
    return tuple(
        StageKind(layers=sum(chunk.layers for chunk in own), first=own[0].first, last=own[-1].last)
        for own in of_stage
    )


def _of_block(block: Block, forward: Component, backward: Component) -> Iterator[tuple[Component, Call]]:
    for component, calls in (
        (forward, block.forward),
        (backward, block.backward),
        (Component.GATHER_FORWARD, block.gather),
        (Component.GATHER_BACKWARD, block.gather),
        (Component.SCATTER, block.scatter),
        *((one.component, one.collective) for one in block.beside),
    ):
        yield from ((component, one) for one in calls)


def decompose(
    *,
    model: ModelConfig,
    parallelism: Parallelism,
    cluster: Cluster,
    bucket_entries: int,
    element_bytes: int = 2,
) -> Decomposition:
    """Take a training step apart.

    Raises:
        UsageError: the model cannot be laid out so.
    """
    OPTIONS["bucket_entries"].check(bucket_entries)
    parallelism.check(model)
    parts = Decomposition(
        model=model,
        parallelism=parallelism,
        cluster=cluster,
        bucket_entries=bucket_entries,
        element_bytes=element_bytes,
    )
    parts.chunks  # noqa: B018 - raises where there are more chunks than the layers allow
    return parts
