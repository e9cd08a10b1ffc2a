"""What passes wait for from other chunks, and what they send there."""

from functools import lru_cache
from typing import Self

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.pipeline.schedules import Kind, Pass
from kernelcast.runtime.request.fields import Schedule
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS, stage_of

Message = tuple[Kind, int, int]
"""What a pass reads: its kind, chunk and micro-batch."""


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of a pipeline whose copies of the model lie one after the other, each with its own ends."""

    schedule: Schedule
    pp: int
    chunks: int
    copies: int

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, schedule: Schedule, pp: int, virtual_stages: int) -> Self:
        """The messages of a schedule."""
        copies = SCHEDULE_KINDS[schedule].copies
        return cls(schedule, pp, pp * virtual_stages * copies, copies)

    def stage_of(self, chunk: int) -> int:
        """The stage that a chunk is on."""
        return stage_of(self.schedule, chunk, self.pp)

    def is_first(self, chunk: int) -> bool:
        """Whether a copy of the model begins with this chunk."""
        return chunk % (self.chunks // self.copies) == 0

    def is_last(self, chunk: int) -> bool:
        """Whether a copy of the model ends with this chunk."""
        return (chunk + 1) % (self.chunks // self.copies) == 0

    def read(self, one: Pass) -> Message | None:
        """What a pass waits for; the input of the model, the loss and what weights need are on the stage."""
        kind, chunk, micro_batch, _ = one
        is_there = kind is Kind.WEIGHT or (
            self.is_first(chunk) if kind is Kind.FORWARD else self.is_last(chunk)
        )
        return None if is_there else (kind, chunk, micro_batch)

    def sent(self, one: Pass) -> Message | None:
        """What a pass sends, as the pass that reads it."""
        kind, chunk, micro_batch, _ = one
        if kind is Kind.FORWARD and not self.is_last(chunk):
            return kind, chunk + 1, micro_batch
        if kind is Kind.BACKWARD and not self.is_first(chunk):
            return kind, chunk - 1, micro_batch
        return None
