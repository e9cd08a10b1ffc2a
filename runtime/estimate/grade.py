"""One grade of doubt for an estimate: good, rough or guess, with its main reason."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from kernelcast.runtime.answers.warnings import Cause
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.estimate.doubts import Doubt
from kernelcast.runtime.record import Record

GOOD, ROUGH, GUESS = "good", "rough", "guess"
_MOST_HALF_WIDTH = ((GOOD, 0.15), (ROUGH, 0.30))
"""Largest half-width of the 90 % interval of each grade, as a fraction of the step; wider ones are a guess."""
_LARGE_SHARE = 0.1
"""A cause of doubt about less of the step is no reason."""

_IN_WORDS: Mapping[Cause, str] = MappingProxyType(
    {
        Cause.LEFT_OUT: "left out of the sum",
        Cause.EXTRAPOLATED: "larger or smaller than what was measured",
        Cause.SUBSTITUTED: "answered by measurements of other work",
        Cause.DESCRIBED: "computed from described links",
        Cause.TRANSFERRED: "measured on another device",
        Cause.DOUBTFUL: "answered by a regressor with large errors",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade(Record):
    """`grade` is good, rough or guess by the width of the 90 % interval; `reason` is a clause."""

    grade: str
    reason: str

    def __str__(self) -> str:
        return f"{self.grade}: {self.reason}"


def grade_of(step_s: float, interval_s: tuple[float, float], doubts: Sequence[Doubt]) -> Grade:
    """The grade of a step; the reason is its interval and the most severe cause that concerns a tenth of it."""
    low, high = (one_s / step_s - 1 for one_s in interval_s)
    grade = next((name for name, most in _MOST_HALF_WIDTH if (high - low) / 2 <= most), GUESS)
    reason = f"in 9 of 10 cases {_side(low)} to {_side(high)}"
    large = [one for one in doubts if one.share is None or one.share >= _LARGE_SHARE]
    if grade != GOOD and large:
        worst = large[0]
        part = "an operator" if worst.share is None else f"{worst.share * 100:.0f} % of the step"
        reason += f"; {part} is {_IN_WORDS[worst.cause]}"
    return Grade(grade=grade, reason=reason)


def _side(change: float) -> str:
    return f"{abs(change) * 100:.0f} % {'shorter' if change < 0 else 'longer'}"
