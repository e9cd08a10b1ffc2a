"""Shares of the operators' time in a step that were measured, transferred or assumed."""

from collections.abc import Collection, Mapping
from math import fsum

from kernelcast.runtime.answers.asking import Question
from kernelcast.runtime.answers.warnings import AnswerWarning, Cause
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownShares(Record):
    """Shares of the operators' time over all stages, 0 to 1; together 1.

    - `measured`: the operator was measured on this device, or for a linear's gradients the same product;
    - `transferred`: the operator or collective was measured on another device or cluster;
    - `assumed`: another operator, or a description of links, answered.
    """

    measured: float
    transferred: float
    assumed: float


def known_shares(
    concerned: Mapping[AnswerWarning, Collection[Question]], times_s: Mapping[Question, float]
) -> KnownShares:
    """Shares by the warnings of an estimate; an answer both transferred and assumed counts as assumed."""
    assumed: set[Question] = set()
    transferred: set[Question] = set()
    for warning, questions in concerned.items():
        if warning.cause is Cause.DESCRIBED or warning.is_assumption:
            assumed.update(questions)
        elif warning.cause is Cause.TRANSFERRED:
            transferred.update(questions)
    whole_s = fsum(times_s.values()) or 1.0
    assumed_s = fsum(times_s.get(one, 0.0) for one in assumed)
    transferred_s = fsum(times_s.get(one, 0.0) for one in transferred - assumed)
    return KnownShares(
        measured=max(0.0, 1 - (assumed_s + transferred_s) / whole_s),
        transferred=transferred_s / whole_s,
        assumed=assumed_s / whole_s,
    )


def origins(concerned: Collection[AnswerWarning]) -> tuple[str, ...]:
    """Devices whose measurements answered for this one, by name."""
    return tuple(sorted({one.values["origin"] for one in concerned if "origin" in one.values}))
