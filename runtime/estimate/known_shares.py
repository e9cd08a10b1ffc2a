"""How a step's operators are known: which share of their time was measured, carried over, or assumed."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kernelcast.runtime.answers.asking import Question
from kernelcast.runtime.answers.warnings import AnswerWarning, Cause
from kernelcast.runtime.estimate.doubts import time_of
from kernelcast.runtime.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownShares(Record):
    """Shares of the operators' time over all stages, 0 to 1; together 1.

    - `measured`: by the operator's own measurements on this device, a linear's gradients by those of the same product;
    - `transferred`: by measurements of another device or cluster, in operators or collectives;
    - `assumed`: by another operator, or by a description of links.
    """

    measured: float
    transferred: float
    assumed: float


def known_shares(
    concerned: Mapping[AnswerWarning, Collection[Question]], times_s: Mapping[Question, float]
) -> KnownShares:
    """Shares by the warnings of an estimate; what is both transferred and assumed is assumed."""
    assumed: set[Question] = set()
    transferred: set[Question] = set()
    for warning, questions in concerned.items():
        if warning.cause is Cause.DESCRIBED or warning.is_assumption:
            assumed.update(questions)
        elif warning.cause is Cause.TRANSFERRED:
            transferred.update(questions)
    whole_s = sum(times_s.values()) or 1.0
    assumed_s = time_of(assumed, times_s)
    transferred_s = time_of(transferred - assumed, times_s)
    return KnownShares(
        measured=max(0.0, 1 - (assumed_s + transferred_s) / whole_s),
        transferred=transferred_s / whole_s,
        assumed=assumed_s / whole_s,
    )


def origins(concerned: Collection[AnswerWarning]) -> tuple[str, ...]:
    """Devices whose measurements answered for this one, by name."""
    return tuple(sorted({one.values["origin"] for one in concerned if "origin" in one.values}))
