"""What an answer's provenance says about the software stack that it was asked for."""

from dataclasses import dataclass
from typing import Self

from kernelcast.runtime.stack.stack import NAMES, Stack, factor_index


@dataclass(frozen=True, slots=True, kw_only=True)
class StackUse:
    """A stack that was applied. `steps` is how many it was fitted to; errors are means of absolute ones over them,
    None where nothing was fitted. `summary` is all of it in words.
    """

    name: str
    software: str
    source: str
    attention: float
    compute: float
    exposed_share: float
    residual: float | None
    steps: int
    error_before: float | None
    error_left_out: float | None
    summary: str

    def factor_of(self, operator: str) -> float:
        """By what an operator's time was multiplied."""
        index = factor_index(operator)
        return 1.0 if index is None else float(getattr(self, NAMES[index]))

    @classmethod
    def of(cls, stack: Stack) -> Self:
        """What is said about a stack."""
        return cls(
            name=stack.name,
            software=stack.software,
            source=stack.source,
            attention=stack.attention,
            compute=stack.compute,
            exposed_share=stack.exposed_share,
            residual=stack.residual,
            steps=stack.steps,
            error_before=stack.error_before,
            error_left_out=stack.error_left_out,
            summary=str(stack),
        )
