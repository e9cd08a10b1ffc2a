"""A training step taken apart: which operator a stage calls, on what, how often (docs/method.md, A step).

`decompose` composes the pieces of blocks.py and update.py; what a chunk of the model costs follows from the times of
its pieces, see stage_times.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kernelcast.runtime.request.layout import Cluster, Parallelism
from kernelcast.runtime.request.model import MAX_SIZE, ModelConfig, require_integer
from kernelcast.runtime.step.blocks import (
    Cut,
    end_backward,
    end_forward,
    layer_backward,
    layer_forward,
    piece_shape,
    send,
)
from kernelcast.runtime.step.calls import Calls, Component, OperatorCall
from kernelcast.runtime.step.groups import Group, data_group, pipeline_pair
from kernelcast.runtime.step.parameters import layer_parameters, stage_parameters
from kernelcast.runtime.step.partition import layers_of_chunks
from kernelcast.runtime.step.update import Role, Update, block_gather, block_scatter, update

__all__ = ["Block", "Calls", "Chunk", "Component", "Decomposition", "OperatorCall", "Stage", "decompose"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One kind of block of the model (a layer, or an end) for one micro-batch.

    With ZeRO-3, `gather_forward` and `gather_backward` fetch its parameters before the pass; with ZeRO-2 and
    3, `scatter` sums and splits its gradients after it. Otherwise they are empty.
    """

    forward: Calls
    backward: Calls
    gather_forward: Calls = ()
    gather_backward: Calls = ()
    scatter: Calls = ()

    @property
    def calls(self) -> Calls:
        """All of them."""
        return self.forward + self.backward + self.gather_forward + self.gather_backward + self.scatter


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of the model that passes run through at once; without virtual stages it is the stage."""

    index: int
    stage: int
    layers: int
    first: bool
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage: its chunks and layers, the parameters on one of its devices, its update."""

    index: int
    chunks: tuple[Chunk, ...]
    layers: int
    parameters: int
    update: Update


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposition:
    """A step as operator calls: the kinds of block, one transfer each way, and the stages that hold them.

    `sharded` says that blocks give their gradients away in every micro-batch (ZeRO-2 and 3) and fetch their
    parameters before use (ZeRO-3), `split` that the backward pass is cut into input and weight gradients
    (zero-bubble).
    """

    vocabulary_size: int
    layer: Block
    first: Block
    last: Block
    send_forward: Calls
    send_backward: Calls
    stages: tuple[Stage, ...]
    chunks: tuple[Chunk, ...]
    sharded: bool
    split: bool

    def micro_batch_calls(self, stage: Stage) -> Iterable[OperatorCall]:
        """What a stage calls for one micro-batch."""
        for chunk in stage.chunks:
            if chunk.first:
                yield from self.first.calls
            if chunk.layers:
                yield from (call.times(chunk.layers) for call in self.layer.calls)
            if chunk.last:
                yield from self.last.calls
            if not chunk.last:
                yield from self.send_forward
            if not chunk.first:
                yield from self.send_backward

    def calls(self, stage: Stage) -> Iterable[OperatorCall]:
        """What a stage calls for one micro-batch, and then once per update."""
        yield from self.micro_batch_calls(stage)
        yield from stage.update.calls

    def distinct_calls(self) -> Iterable[OperatorCall]:
        """Every piece once, those of the ends and of equal updates too; empty blocks are left out."""
        blocks = [self.first, self.last]
        if any(chunk.layers for chunk in self.chunks):
            blocks.insert(1, self.layer)
        for block in blocks:
            yield from block.calls
        yield from self.send_forward + self.send_backward
        for found in dict.fromkeys(stage.update for stage in self.stages):
            yield from found.calls


def decompose(
    *,
    model: ModelConfig,
    parallelism: Parallelism,
    cluster: Cluster,
    bucket_entries: int,
    left_out: frozenset[str] = frozenset(),
) -> Decomposition:
    """Take a training step apart.

    Point-to-point transfers are charged to the sender: forward after all but the last chunk, backward after all
    but the first. Data-parallel collectives over more than `bucket_entries` entries become full buckets and
    a remainder. Degrees of 1 call no collective. Supplementary operators in `left_out` are not called.

    Raises:
        UsageError: the model cannot be laid out so.
    """
    require_integer("bucket_entries", bucket_entries, low=1, high=MAX_SIZE)
    parallelism.check(model)
    counts = layers_of_chunks(model.layers, parallelism)
    cut = Cut.of(parallelism, cluster, left_out)
    layout = _Layout(model, parallelism, cut, data_group(parallelism, cluster), bucket_entries)
    chunks = tuple(
        Chunk(
            index=index,
            stage=index % parallelism.pp,
            layers=count,
            first=index == 0,
            last=index == len(counts) - 1,
        )
        for index, count in enumerate(counts)
    )
    pair = pipeline_pair(parallelism, cluster)
    several = len(chunks) > 1
    return Decomposition(
        vocabulary_size=piece_shape(model, cut).vocabulary_size,
        layer=layout.layer(),
        first=layout.end(first=True),
        last=layout.end(first=False),
        send_forward=send(model, cut, pair, Component.SEND_FORWARD) if several else (),
        send_backward=send(model, cut, pair, Component.SEND_BACKWARD) if several else (),
        stages=tuple(layout.stage(index, chunks[index :: parallelism.pp]) for index in range(parallelism.pp)),
        chunks=chunks,
        sharded=parallelism.zero >= 2 and parallelism.dp > 1,
        split=parallelism.schedule == "zero_bubble",
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the blocks and stages of one layout share."""

    model: ModelConfig
    parallelism: Parallelism
    cut: Cut
    data_group: Group
    bucket_entries: int

    def layer(self) -> Block:
        """One layer."""
        return self._block(
            layer_forward(self.model, self.cut),
            layer_backward(self.model, self.cut, self.parallelism.recompute),
            layer_parameters(self.model, self.cut.tp),
        )

    def end(self, *, first: bool) -> Block:
        """Embedding, or norm, logits and loss."""
        end = "first" if first else "last"
        return self._block(
            end_forward(self.model, self.cut, end),
            end_backward(self.model, self.cut, end),
            stage_parameters(self.model, self.cut.tp, layers=0, first=first, last=not first),
        )

    def stage(self, index: int, chunks: tuple[Chunk, ...]) -> Stage:
        """One stage with its update."""
        first, last = chunks[0].first, chunks[-1].last
        layers = sum(chunk.layers for chunk in chunks)
        parameters = stage_parameters(self.model, self.cut.tp, layers=layers, first=first, last=last)
        role: Role = "last" if last else "first" if first else "middle"
        return Stage(
            index=index,
            chunks=chunks,
            layers=layers,
            parameters=parameters,
            update=update(
                role,
                parameters,
                layers,
                dp=self.parallelism.dp,
                zero=self.parallelism.zero,
                group=self.data_group,
                bucket_entries=self.bucket_entries,
                left_out=self.cut.left_out,
            ),
        )

    def _block(self, forward: Calls, backward: Calls, parameters: int) -> Block:
        if self.parallelism.zero < 2:
            return Block(forward=forward, backward=backward)
        dp, group, bucket = self.parallelism.dp, self.data_group, self.bucket_entries
        scatter = block_scatter(parameters, dp=dp, group=group, bucket_entries=bucket)
        if self.parallelism.zero == 2:
            return Block(forward=forward, backward=backward, scatter=scatter)
        gathers = [
            block_gather(parameters, dp=dp, group=group, bucket_entries=bucket, component=component)
            for component in (Component.GATHER_FORWARD, Component.GATHER_BACKWARD)
        ]
        return Block(
            forward=forward,
            backward=backward,
            gather_forward=gathers[0],
            gather_backward=gathers[1],
            scatter=scatter,
        )
