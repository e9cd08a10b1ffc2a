"""How a layout cuts a model: its chunks, and what stages hold of them."""

from itertools import accumulate

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.schedule import stage_of
from kernelcast.runtime.step.kinds import kinds_of
from kernelcast.runtime.step.partition import layers_of_chunks
from kernelcast.runtime.step.recomputation import kept_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKind:
    """Stages that have the same update: their layers of each kind, and which ends of the model they hold."""

    counts: tuple[int, ...]
    first: bool
    last: bool

    @property
    def layers(self) -> int:
        return sum(self.counts)

    @property
    def optimizer_role(self) -> str:
        """The role of its optimizer step; a single stage, first and last at once, is the last."""
        return "last_stage" if self.last else "first_stage" if self.first else "middle_stage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of the model that passes run through at once; without virtual stages it is the stage.

    `counts` are its layers of each kind, `kept` the layers among them without recomputation. A chunk sends forward and
    backward unless the model, or its next chunk, is on the same stage.
    """

    index: int
    stage: int
    counts: tuple[int, ...]
    kept: tuple[int, ...]
    first: bool
    last: bool
    sends_forward: bool
    sends_backward: bool


def chunks_of(model: ModelConfig, parallelism: Parallelism) -> tuple[Chunk, ...]:
    """The chunks of a layout in the order of the model, first its first copy, then its second.

    Raises:
        UsageError: more chunks than the model's layers allow.
    """
    counts = layers_of_chunks(model.layers, parallelism)
    kinds = kinds_of(model)
    model_chunks = [*enumerate(zip(counts, accumulate(counts), strict=True))] * parallelism.copies
    stages = [stage_of(parallelism.schedule, index, parallelism.pp) for index in range(len(model_chunks))]
    return tuple(
        Chunk(
            index=index,
            stage=stages[index],
            counts=kinds.counts(end - count, end),
            kept=kinds.counts(end - kept_layers(parallelism, count), end),
            first=own == 0,
            last=own == len(counts) - 1,
            sends_forward=own < len(counts) - 1 and stages[index] != stages[index + 1],
            sends_backward=own > 0 and stages[index] != stages[index - 1],
        )
        for index, (own, (count, end)) in enumerate(model_chunks)
    )


def stage_kinds(chunks: tuple[Chunk, ...], pp: int) -> tuple[StageKind, ...]:
    """The kind of every stage of a pipeline."""
    of_stage = [[chunk for chunk in chunks if chunk.stage == stage] for stage in range(pp)]
    return tuple(
        StageKind(
            counts=tuple(sum(counts) for counts in zip(*(chunk.counts for chunk in own), strict=True)),
            first=any(chunk.first for chunk in own),
            last=any(chunk.last for chunk in own),
        )
        for own in of_stage
    )
