"""A training step taken apart: which operator a stage calls, on what, how often (docs/method.md, A step)."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from math import ceil

from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.request.fields import OPTIONS
from kernelcast.runtime.request.layout import Cluster, Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS
from kernelcast.runtime.step.chunks import (
    DENSE,
    Chunk,
    LayerKind,
    LayerKinds,
    StageKind,
    chunks_of,
    kinds_of,
    stage_kinds,
)
from kernelcast.runtime.step.groups import pipeline_pair
from kernelcast.runtime.step.layers.linear import cast_rows
from kernelcast.runtime.step.layers.loss import embedding, loss, vocabulary_matrix
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.modules import FROZEN_BYTES, RECIPES
from kernelcast.runtime.step.op import Call, Calls, Component, Number, Op, Ops, Overlap, call, op
from kernelcast.runtime.step.parameters import HeldParameters, PartParameters, held_parameters
from kernelcast.runtime.step.passes import Pass, Passes, passes_of, remembered_ops
from kernelcast.runtime.step.recomputation import recomputed
from kernelcast.runtime.step.sizes import Sizes
from kernelcast.runtime.step.update import DataParallel, Host, update_ops

FIRST, LAST = "first", "last"


@dataclass(frozen=True)
class Block:
    """One kind of block of the model for one micro-batch: a transformer layer of one kind, or an end."""

    name: str
    passes: Passes
    layout: Parallelism

    @cached_property
    def recomputed(self) -> Pass:
        """What its backward pass runs again."""
        return self.passes.rerun(recomputed(self.layout, self.passes.ops))

    @property
    def ops(self) -> Ops:
        """Its ops, in the order in which they run."""
        return self.passes.ops

    @property
    def is_layer(self) -> bool:
        """Whether it is a transformer layer."""
        return self.name not in (FIRST, LAST)


def layer_name(kind: int) -> str:
    """The name of the block that is a layer of one kind, by its place among the model's distinct kinds."""
    return f"layer {kind}"


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    """A step of `model` as operator calls. The sender is charged for transfers between stages; data-parallel
    collectives over more than `bucket_entries` become full buckets and a rest; degrees of 1 call none. `element_bytes`
    is the training dtype's.
    """

    model: ModelConfig
    parallelism: Parallelism
    cluster: Cluster
    bucket_entries: int
    element_bytes: int = 2

    @cached_property
    def sizes(self) -> Sizes:
        """What one device holds."""
        return Sizes(
            model=self.model, layout=self.parallelism, cluster=self.cluster, element_bytes=self.element_bytes
        )

    @cached_property
    def data_parallel(self) -> DataParallel:
        """How data parallelism shards what all replicas hold."""
        return DataParallel.of(self.parallelism, self.cluster, self.bucket_entries, self.element_bytes)

    @cached_property
    def expert_data_parallel(self) -> DataParallel:
        """How data parallelism shards experts, which fewer devices hold."""
        return DataParallel.of_experts(
            self.parallelism, self.cluster, self.bucket_entries, self.element_bytes
        )

    @cached_property
    def kinds(self) -> LayerKinds:
        """The kinds of the model's layers."""
        return kinds_of(self.model)

    @cached_property
    def blocks(self) -> dict[str, Block]:
        """The blocks by name: the first end, the last end, and a layer of each kind."""
        # Further predictions have a layer of the model's last kind.
        last = self.kinds.distinct[self.kinds.of_layer[-1]] if self.model.extra_predictions else DENSE
        ends = (self._block(FIRST, embedding, DENSE), self._block(LAST, loss, last))
        return {one.name: one for one in (*ends, *self.layers)}

    @cached_property
    def layers(self) -> tuple[Block, ...]:
        """One transformer layer of each kind."""
        return tuple(
            self._block(layer_name(number), transformer_layer, kind)
            for number, kind in enumerate(self.kinds.distinct)
        )

    def _block(self, name: str, describe: Callable[[Sizes], Ops], kind: LayerKind) -> Block:
        return Block(name, passes_of(describe, self.sizes.of_kind(kind)), self.parallelism)

    @property
    def first(self) -> Block:
        """The embedding."""
        return self.blocks[FIRST]

    @property
    def last(self) -> Block:
        """Final norm, logits and loss."""
        return self.blocks[LAST]

    @cached_property
    def shards(self) -> dict[str, tuple[Calls, Calls]]:
        """What every block gathers before either pass (ZeRO-3), and scatters after its backward pass (ZeRO-2 and 3)."""
        return {name: self._shards(block.ops) for name, block in self.blocks.items()}

    def _shards(self, ops: Ops) -> tuple[Calls, Calls]:
        if not self.is_sharded:
            return (), ()
        held = held_parameters(self.sizes, ops)
        share = self._gather_share([(1, ops)], held.total)
        gather = tuple(one for own, how in self._shares(held.whole) for one in how.gather(ceil(share * own)))
        scatter = tuple(one for own, how in self._shares(held) for one in how.scatter(own))
        # Of what is gathered: nothing stays of the copies in 8 bit, unless those are gathered.
        casts = self._casts(ops) if self.parallelism.zero == 3 and not self.parallelism.fp8_weights else ()
        return (*gather, *(one for cast in casts for one in cast.forward())), scatter

    def _shares(self, held: HeldParameters) -> Iterator[tuple[int, DataParallel]]:
        """Parameters that all replicas hold, and parameters of experts, each with its sharding."""
        yield int(held.dense), self.data_parallel
        if held.experts:
            yield int(held.experts), self.expert_data_parallel

    def _casts(self, ops: Ops) -> Ops:
        """Casts of the weights of some ops to 8 bit."""
        weights = (
            one.weight for one in ops if one.weight is not None and self.sizes.is_cast(one.weight.kind)
        )
        moved_bytes = RECIPES[self.parallelism.fp8_recipe].weight_bytes if self.has_casts else 0
        return tuple(
            op(
                Component.WEIGHT_CAST,
                "float8_cast",
                cast_rows(w.k, moved_bytes),
                w.n,
                directions=(Direction.FORWARD,),
                count=w.times,
            )
            for w in weights
        )

    @property
    def has_casts(self) -> bool:
        """Whether linears run in 8 or 4 bit."""
        return self.parallelism.fp8_recipe != "none"

    def _gather_share(self, counts: Iterable[tuple[int, Ops]], parameters: Number) -> float:
        """Gathered bytes over the parameters' bytes in the training dtype: below 1 for cast and 4-bit weights."""
        layout = self.parallelism
        if not ((layout.fp8_weights and self.has_casts) or self.sizes.is_quantised) or not parameters:
            return 1.0
        cast = sum(
            times * one.weight.entries
            for times, ops in counts
            for one in ops
            if one.weight is not None and self.sizes.is_narrow(one.weight.kind)
        )
        is_frozen = self.sizes.is_quantised
        entry = FROZEN_BYTES[layout.frozen_weights] if is_frozen else RECIPES[layout.fp8_recipe].entry_bytes
        saved = 1 - entry / self.element_bytes
        return float(1 - saved * cast / parameters)

    @cached_property
    def send(self) -> Calls:
        """One transfer of a micro-batch's activations, or of their gradients, to a neighbouring stage."""
        if self.parallelism.chunks == 1:
            return ()
        pair, entries = pipeline_pair(self.parallelism, self.cluster), self.sizes.sent_entries
        return (call("point_to_point", entries, pair.nodes, pair.gpus_per_node, role="pipeline"),)

    def update(self, stage: StageKind) -> Ops:
        """The ops of a kind of stage once per update, in the order in which they run."""
        layers = stage.layers + stage.last * self.model.extra_predictions
        held = self._held(stage)
        counts = ((count, block.ops) for block, count in zip(self.layers, stage.counts, strict=True))
        # Adapters, which alone are updated then, have the training's type.
        share = 1.0 if self.sizes.is_frozen else self._gather_share(counts, held.total)
        ops = update_ops(list(self._shares(held)), stage.optimizer_role, layers, gathered=share)
        if self.sizes.is_frozen:
            return ops
        # Weights are cast to 8 bit for the next step; with ZeRO-3 every gather does that.
        if self.parallelism.fp8_recipe != "none" and self.parallelism.zero < 3:
            cast = [*zip(self.layers, stage.counts, strict=True), (self.last, int(stage.last))]
            casts = (one.times(count, "") for block, count in cast for one in self._casts(block.ops))
            ops = _before(ops, Component.ALL_GATHER, tuple(casts))
        # In a pipeline both ends hold copies of tied embeddings, and of those that further predictions read, and sum
        # their gradients; that overlaps no pass, as it waits for all replicas' gradients.
        if (self.model.tied_embeddings or self.model.extra_predictions) and stage.first != stage.last:
            overlaps = self.parallelism.overlap_gradients
            name = Component.TIED_EMBEDDINGS if overlaps else Component.ALL_REDUCE
            return _before(ops, Component.GRADIENT_SCALING, (self._tied(name),))
        return ops

    def _tied(self, name: Component) -> Op:
        pair = pipeline_pair(self.parallelism, self.cluster)
        entries = vocabulary_matrix(self.sizes) * self.data_parallel.gradient_width
        return op(name, "all_reduce", entries, pair.nodes, pair.gpus_per_node, role="data", collective="both")

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
        return self._part_parameters.of_stage(layers=stage.counts, first=stage.first, last=stage.last)

    @cached_property
    def _part_parameters(self) -> PartParameters:
        return part_parameters(self.sizes.of_kind(self.kinds.most_sizes))

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
        return stage_kinds(self.model, self.parallelism)

    def calls(self, stage: int) -> Iterator[tuple[Component, Call]]:
        """What a stage calls for one micro-batch, and then once per update, with the component it belongs to.

        Of two copies of the model the one that begins on the first stage is listed; the other calls as much over all.
        """
        for chunk in self.chunks[: self.parallelism.chunks]:
            if chunk.stage == stage:
                yield from self._of_chunk(replace(chunk, index=0, stage=0))
        yield from self.of_update(self.stages[stage])

    def all_calls(self) -> Iterator[tuple[Component, Call]]:
        """What all stages call, as `calls` lists it for one; what chunks of a kind call is listed once."""
        chunks = Counter(replace(one, index=0, stage=0) for one in self.chunks[: self.parallelism.chunks])
        called = [(self._of_chunk(one), times) for one, times in chunks.items()]
        called += [(self.of_update(one), times) for one, times in Counter(self.stages).items()]
        return ((component, one.times(times)) for calls, times in called for component, one in calls)

    @cached_property
    def _known_calls(self) -> dict[Chunk | StageKind, list[tuple[Component, Call]]]:
        """Calls of chunks and of updates, by their kind: most stages call the same."""
        return {}

    def _of_chunk(self, chunk: Chunk) -> list[tuple[Component, Call]]:
        """What a chunk calls for one micro-batch, wherever it is."""
        if chunk in self._known_calls:
            return self._known_calls[chunk]
        found = [*self._of_block(self.first)] if chunk.first else []
        for block, count, kept in zip(self.layers, chunk.counts, chunk.kept, strict=True):
            for times, reruns in ((count - kept, True), (kept, False)):
                if times:
                    layer = self._of_block(block, reruns=reruns)
                    found += [(component, one.times(times)) for component, one in layer]
        if chunk.last:
            found += self._of_block(self.last)
        if chunk.sends_forward:
            found += [(Component.SEND_FORWARD, one) for one in self.send * self.parallelism.forward_passes]
        if chunk.sends_backward:
            found += [(Component.SEND_BACKWARD, one) for one in self.send]
        self._known_calls[chunk] = found
        return found

    def of_update(self, stage: StageKind) -> list[tuple[Component, Call]]:
        """What a kind of stage calls once per update."""
        if stage not in self._known_calls:
            ops = self.update(stage)
            self._known_calls[stage] = [(Component(own.name), one) for own in ops for one in own.forward()]
        return self._known_calls[stage]

    def _of_block(self, block: Block, *, reruns: bool = True) -> Iterator[tuple[Component, Call]]:
        """What a block calls, with what its backward pass runs again where it `reruns` any of it."""
        passes = block.passes
        forward, backward = (
            (Component.LAYER_FORWARD, Component.LAYER_BACKWARD)
            if block.is_layer
            else (Component.ENDS_FORWARD, Component.ENDS_BACKWARD)
        )
        again = [(backward, Component.OVERLAPPED_BACKWARD, block.recomputed)] if reruns else []
        runs: list[tuple[Component, Component, Pass]] = [
            (forward, Component.OVERLAPPED_FORWARD, passes.forward),
            (backward, Component.OVERLAPPED_BACKWARD, passes.backward),
            *again,
        ]
        for component, overlapped, own in runs:
            yield from ((component, one) for one in own.calls)
            for overlap, pair in own.overlapped.items():
                named = Component.GATHER_INPUT if _gathers_input(overlap) else overlapped
                yield from ((named, one) for one in pair.collectives)
        gather, scatter = self.shards[block.name]
        for component, calls in (
            (Component.GATHER_FORWARD, gather * self.parallelism.forward_passes),
            (Component.GATHER_BACKWARD, gather),
            (Component.SCATTER, scatter),
        ):
            yield from ((component, one) for one in calls)


@remembered_ops
def part_parameters(s: Sizes) -> PartParameters:
    """`PartParameters.of`, remembered."""
    return PartParameters.of(s)


def _before(ops: Ops, name: Component, added: Ops) -> Ops:
    """The ops with others before the first of a name, or after all."""
    place = next((at for at, one in enumerate(ops) if one.name == name), len(ops))
    return (*ops[:place], *added, *ops[place:])


def _gathers_input(overlap: Overlap) -> bool:
    return overlap.direction is Direction.INPUT_GRADIENT and not overlap.in_pieces


def decompose(
    *,
    model: ModelConfig,
    parallelism: Parallelism,
    cluster: Cluster,
    bucket_entries: int,
    element_bytes: int = 2,
) -> Decomposition:
    """Take a training step apart; UsageError where the model cannot be laid out so."""
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
