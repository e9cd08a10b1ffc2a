"""A training step taken apart: which operator a stage calls, on what, how often (docs/method.md, A step).

What a chunk of the model costs follows from the times of its blocks, see chunk_times.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil

from kernelcast.runtime.request.fields import OPTIONS
from kernelcast.runtime.request.layout import Cluster, Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS
from kernelcast.runtime.step.calls import Beside, Call, Calls, Component, call, forward
from kernelcast.runtime.step.chunks import Chunk, StageKind, chunks_of, stage_kinds
from kernelcast.runtime.step.groups import ALONE, data_group, expert_data_group, pipeline_pair, shard_groups
from kernelcast.runtime.step.host import Host
from kernelcast.runtime.step.layer_passes import REMEMBERED, Passes, passes_of
from kernelcast.runtime.step.layers.embedding import Embedding
from kernelcast.runtime.step.layers.kinds import DENSE, LayerKind, LayerKinds, kinds_of
from kernelcast.runtime.step.layers.loss import Loss
from kernelcast.runtime.step.layers.sizes import Layer, Sizes
from kernelcast.runtime.step.layers.transformer_layer import TransformerLayer
from kernelcast.runtime.step.layers.update import DataParallel, Update, gradient_bytes, update_of
from kernelcast.runtime.step.optimizers import moved_share
from kernelcast.runtime.step.parameters import HeldParameters, PartParameters, held_by, layer_of
from kernelcast.runtime.step.recomputation import Recomputation


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


@lru_cache(maxsize=REMEMBERED)
def _held_by(kind: type[Layer], sizes: Sizes) -> HeldParameters:
    return held_by(kind(sizes))


@lru_cache(maxsize=REMEMBERED)
def _part_parameters(sizes: Sizes) -> PartParameters:
    return PartParameters.of(sizes)


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    """A step of `model` as operator calls.

    Point-to-point transfers are charged to the sender: forward after all but the last chunk, backward after all but the
    first, unless the other chunk is on the same stage. Data-parallel collectives over more than `bucket_entries`
    entries become full buckets and a remainder. Degrees of 1 call no collective. `element_bytes` are those of the type
    that is trained in, which is that of the operators.
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
            optimizer_share=(1 - layout.offload_optimizer)
            * moved_share(layout.optimizer, layout.optimizer_states),
            shard_group=shard,
            copy_group=copies,
            scatters=layout.gradient_collective == "reduce_scatter",
            overlaps_gradients=layout.overlap_gradients,
            overlaps_parameters=layout.overlap_parameters,
            overlap_bucket=layout.overlap_bucket,
        )

    @cached_property
    def expert_data_parallel(self) -> DataParallel:
        """The same of experts, which fewer devices hold."""
        group = expert_data_group(self.parallelism, self.cluster)
        return replace(
            self.data_parallel,
            dp=self.parallelism.expert_replicas,
            group=group,
            shard_group=None,
            copy_group=ALONE,
            role="expert_data",
        )

    @cached_property
    def kinds(self) -> LayerKinds:
        """The kinds of the model's layers."""
        return kinds_of(self.model)

    @cached_property
    def recomputation(self) -> Recomputation:
        """What is computed again."""
        return Recomputation.of(self.parallelism)

    @cached_property
    def layers(self) -> tuple[Block, ...]:
        """One transformer layer of each kind, recomputed where layers are."""
        return tuple(self._block(TransformerLayer, kind) for kind in self.kinds.distinct)

    @property
    def layer(self) -> Block:
        """One transformer layer of the most frequent kind."""
        return self.layers[0]

    @cached_property
    def kept_layers(self) -> tuple[Block, ...]:
        """The same without recomputation."""
        return tuple(self._block(TransformerLayer, kind, Recomputation()) for kind in self.kinds.distinct)

    @property
    def recomputed_fully(self) -> tuple[Calls, ...]:
        """What the backward pass of a layer of each kind has that of a kept one has not."""
        how = self.recomputation
        return tuple(
            layer_of(self.sizes, kind).recomputed(how) if how.kind == "full" else ()
            for kind in self.kinds.distinct
        )

    @cached_property
    def first(self) -> Block:
        """The embedding."""
        return self._block(Embedding)

    @cached_property
    def last(self) -> Block:
        """Final norm, logits and loss."""
        return self._block(Loss, self._last_kind)

    @property
    def _last_kind(self) -> LayerKind:
        """What the last end depends on: further predictions have a layer of the model's last kind."""
        return self.kinds.distinct[self.kinds.of_layer[-1]] if self.model.extra_predictions else DENSE

    @cached_property
    def passes(self) -> tuple[Passes, ...]:
        """Those of every block, in the order of `blocks`, without what ZeRO gathers and scatters."""
        listed = [(Embedding, DENSE), (Loss, self._last_kind)]
        listed += [(TransformerLayer, kind) for kind in self.kinds.distinct]
        return tuple(passes_of(layer, self.sizes.of_kind(kind), self.recomputation) for layer, kind in listed)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The first end, the last end, and a layer of each kind."""
        return (self.first, self.last, *self.layers)

    @property
    def shards(self) -> tuple[tuple[Calls, Calls], ...]:
        """`gather` and `scatter` of every block, in the order of `blocks`."""
        layers = (self._shards(TransformerLayer, kind) for kind in self.kinds.distinct)
        return self._shards(Embedding), self._shards(Loss, self._last_kind), *layers

    def _shards(self, kind: type[Layer], layer_kind: LayerKind = DENSE) -> tuple[Calls, Calls]:
        if not self.is_sharded:
            return (), ()
        sizes = self.sizes.of_kind(layer_kind)
        held = _held_by(kind, sizes)
        gather = tuple(one for own, how in self._shares(held.whole) for one in how.gather(own))
        scatter = tuple(one for own, how in self._shares(held) for one in how.scatter(own))
        # Of what is gathered: nothing stays of the copies in 8 bit.
        casts = forward(kind(sizes).weight_casts) if self.parallelism.zero == 3 else ()
        return (*gather, *casts), scatter

    def _block(
        self, kind: type[Layer], layer_kind: LayerKind = DENSE, how: Recomputation | None = None
    ) -> Block:
        passes = passes_of(kind, self.sizes.of_kind(layer_kind), how or self.recomputation)
        gather, scatter = self._shards(kind, layer_kind)
        return Block(
            forward=passes.forward,
            backward=passes.backward,
            beside=(*passes.beside_forward, *passes.beside_backward),
            beside_forward=len(passes.beside_forward),
            gather=gather,
            scatter=scatter,
        )

    def _shares(self, held: HeldParameters) -> Iterator[tuple[int, DataParallel]]:
        """Parameters that all replicas hold, and those of experts, with how each is sharded."""
        yield int(held.dense), self.data_parallel
        if held.experts:
            yield int(held.experts), self.expert_data_parallel

    @cached_property
    def send(self) -> Calls:
        """One transfer of a micro-batch's activations, or of their gradients, to a neighbouring stage."""
        if self.parallelism.chunks == 1:
            return ()
        pair, entries = pipeline_pair(self.parallelism, self.cluster), self.sizes.sent_entries
        return (call("point_to_point", entries, pair.nodes, pair.gpus_per_node, role="pipeline"),)

    def update(self, stage: StageKind) -> Update:
        """The update of a kind of stage."""
        layers = stage.layers + stage.last * self.model.extra_predictions
        update = update_of(list(self._shares(self._held(stage))), stage.optimizer_role, layers)
        if casts := self._casts(stage):
            update = replace(update, optimizer=(*update.optimizer, *casts))
        if self.sizes.linears.is_frozen:
            return update
        # In a pipeline both ends hold copies of tied embeddings, and of those that further predictions read, and sum
        # their gradients.
        is_copy = (
            bool(self.model.tied_embeddings or self.model.extra_predictions) and stage.first != stage.last
        )
        if is_copy and self.parallelism.overlap_gradients:
            # Not beside a pass: they wait for all replicas' gradients.
            return replace(update, optimizer=self._tied + update.optimizer)
        return replace(update, gradients=update.gradients + self._tied) if is_copy else update

    def _casts(self, stage: StageKind) -> Calls:
        """Weights cast to 8 bit for the next step; with ZeRO-3 every gather does that, and frozen ones stay."""
        linears = self.sizes.linears
        if linears.recipe == "none" or linears.is_frozen or self.parallelism.zero == 3:
            return ()
        layers = (layer_of(self.sizes, kind) for kind in self.kinds.distinct)
        held = [*zip(layers, stage.counts, strict=True), (Loss(self.sizes), int(stage.last))]
        return forward(one.times(count) for layer, count in held for one in layer.weight_casts)

    @property
    def _tied(self) -> Calls:
        pair = pipeline_pair(self.parallelism, self.cluster)
        entries = Embedding(self.sizes).matrix * self.data_parallel.gradient_width
        return (call("all_reduce", entries, pair.nodes, pair.gpus_per_node, role="data"),)

    def host_update_us(self, stage: StageKind, host: Host) -> float:
        """What the host's part of a kind of stage's update takes, in µs."""
        layout = self.parallelism
        own = sum(
            -(-held // how.shards) if layout.zero else held for held, how in self._shares(self._held(stage))
        )
        return host.update_us(
            layout,
            ceil(layout.offload_optimizer * own),
            gradient_bytes=self.data_parallel.gradient_width * self.element_bytes,
            weight_bytes=self.element_bytes,
        )

    def parameters(self, stage: StageKind) -> int:
        """Parameters on one device of a kind of stage."""
        return int(self._held(stage).total)

    def _held(self, stage: StageKind) -> HeldParameters:
        parts = _part_parameters(self.sizes)
        return parts.of_stage(layers=stage.counts, first=stage.first, last=stage.last)

    @property
    def without_recomputation(self) -> "Decomposition":
        """The same where everything is kept."""
        return replace(self, parallelism=replace(self.parallelism, recompute="none"))

    @property
    def is_sharded(self) -> bool:
        """Whether blocks give their gradients away in every micro-batch (ZeRO-2 and 3)."""
        return self.parallelism.zero >= 2 and self.parallelism.replicas > 1

    @property
    def is_split(self) -> bool:
        """Whether the backward pass is cut into input and weight gradients (zero-bubble and its kin)."""
        return SCHEDULE_KINDS[self.parallelism.schedule].splits

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks in the order of the model."""
        return chunks_of(self.model, self.parallelism)

    @cached_property
    def stages(self) -> tuple[StageKind, ...]:
        """The kind of every stage."""
        return stage_kinds(self.chunks, self.parallelism.pp)

    def calls(self, stage: int) -> Iterator[tuple[Component, Call]]:
        """What a stage calls for one micro-batch, and then once per update, with the component it belongs to.

        Of two copies of the model a micro-batch runs through one: listed is the one that begins on the first stage.
        Over all stages the other one calls as much.
        """
        for chunk in self.chunks[: self.parallelism.chunks]:
            if chunk.stage != stage:
                continue
            if chunk.first:
                yield from _of_block(self.first, Component.ENDS_FORWARD, Component.ENDS_BACKWARD)
            for kind, (count, kept) in enumerate(zip(chunk.counts, chunk.kept, strict=True)):
                for block, layers in ((self.layers[kind], count - kept), (self.kept_layers[kind], kept)):
                    if layers:
                        layer = _of_block(block, Component.LAYER_FORWARD, Component.LAYER_BACKWARD)
                        yield from ((component, one.times(layers)) for component, one in layer)
            if chunk.last:
                yield from _of_block(self.last, Component.ENDS_FORWARD, Component.ENDS_BACKWARD)
            if chunk.sends_forward:
                yield from ((Component.SEND_FORWARD, one) for one in self.send)
            if chunk.sends_backward:
                yield from ((Component.SEND_BACKWARD, one) for one in self.send)
        update = self.update(self.stages[stage])
        yield from ((Component.ALL_REDUCE, one) for one in update.gradients)
        yield from ((Component.OPTIMIZER, one) for one in update.optimizer)
        yield from ((Component.ALL_GATHER, one) for one in update.gather)


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
