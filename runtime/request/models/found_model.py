"""A model with notes about how its file was read."""

from typing import Any

from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.request.model import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """A model, and `notes` about it, one sentence each.

    `longest` says where its sequence length is from, where that is the longest one that the model serves rather than
    one that it is trained on; else it is empty.
    """

    model: ModelConfig
    notes: tuple[str, ...] = ()
    longest: str = ""

    def with_length(self, sequence_length: int | None) -> "FoundModel":
        """The model on sequences of another length, where one is given; its length is then known.

        Raises:
            UsageError: a length that it cannot have.
        """
        if sequence_length is None:
            return self
        return replace(self, model=self.model.with_sequence_length(sequence_length), longest="")

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, and the one about its length."""
        if not self.longest:
            return self.notes
        length = (
            f"{self.longest}, the longest sequence that the model serves, and is predicted; "
            "sequence_length gives that of training"
        )
        return (*self.notes, length)

    def with_notes(self, values: dict[str, Any]) -> dict[str, Any]:
        """Plain values of an answer with the notes, if any, under `model_notes`."""
        return {**values, "model_notes": list(self.all_notes)} if self.all_notes else values

    def require_length(self) -> "FoundModel":
        """The same, whose length is one of training: what is searched for depends on it.

        Raises:
            UsageError: it is only known which one is the longest.
        """
        if self.longest:
            raise UsageError(
                f"{self.longest}, the longest sequence that the model serves, expected sequence_length "
                "(--sequence-length) with the tokens of a sequence in training"
            )
        return self
