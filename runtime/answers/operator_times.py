"""Times of a step's operator calls, each regressor asked once for all of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.answers.beyond_range import widened
from kernelcast.runtime.answers.concurrency import ConcurrencyWarning
from kernelcast.runtime.answers.left_out import LeftOutWarning
from kernelcast.runtime.answers.predictor import Answer, Predictor
from kernelcast.runtime.answers.range_warning import RangeWarning
from kernelcast.runtime.answers.substitutes import SubstituteWarning, substitute
from kernelcast.runtime.bundle.calibration import Calibration, factor_of
from kernelcast.runtime.bundle.regressor_entry import Key
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.step.calls import OperatorCall

Vector = tuple[int, ...]
Question = tuple[Key, Vector]
"""What is asked: operator and direction, and the workload vector."""
Warnings = RangeWarning | SubstituteWarning | ConcurrencyWarning | LeftOutWarning


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTimes:
    """Time, low and high end of the 90 % interval, in µs, of every distinct question; wider beyond the trained range.

    `sources` says which regressor answered: the operator's own, or a substitute's.
    """

    answers: Mapping[Question, Answer]
    sources: Mapping[Question, Key]
    warnings: tuple[Warnings, ...]


@dataclass(slots=True)
class _Asked:
    """Questions to one regressor: the vector it is asked, and for whom with which factor."""

    vectors: dict[Vector, None] = field(default_factory=dict)
    questions: list[tuple[Question, Vector, float]] = field(default_factory=list)


def question(call: OperatorCall) -> Question:
    """What a call asks."""
    return (call.operator, call.direction), call.vector


def ask(
    predictor: Predictor,
    calls: Iterable[OperatorCall],
    *,
    needed_by: str,
    calibration: Calibration | None = None,
) -> OperatorTimes:
    """Ask for the time of every call; what the bundle lacks is answered by a substitute where there is one.

    With `calibration`, times and intervals are multiplied by the factor of the operator's class.

    Raises:
        DataError: the bundle lacks an operator, and nothing stands in for it; the message says `needed_by`.
    """
    asked: dict[Key, _Asked] = {}
    stand_ins: dict[SubstituteWarning, None] = {}
    for key, vector in dict.fromkeys(map(question, calls)):
        source, source_vector, factor = key, vector, 1.0
        if key not in predictor.bundle.entries:
            found = substitute(key[0], vector, predictor.bundle.entries, key[1])
            if found is None:
                raise DataError(
                    f"bundle {predictor.bundle.path} has no regressor for {key[0]} ({key[1]}), "
                    f"which {needed_by} needs"
                )
            stand_ins[SubstituteWarning.of(found, key[1])] = None
            source, source_vector, factor = (found.source, key[1]), found.vector(vector), found.factor
        to_ask = asked.setdefault(source, _Asked())
        to_ask.vectors[source_vector] = None
        to_ask.questions.append(((key, vector), source_vector, factor * factor_of(calibration, key[0])))
    answers: dict[Question, Answer] = {}
    sources: dict[Question, Key] = {}
    warnings: list[Warnings] = list(stand_ins)
    for source, to_ask in asked.items():
        vectors = list(to_ask.vectors)
        times = predictor.answers_of(*source, vectors)
        beyond = predictor.range_warnings(*source, vectors)
        if beyond:
            entry = predictor.bundle.entries[source]
            times = {vector: widened(entry, vector, answer) for vector, answer in times.items()}
        for one, vector, factor in to_ask.questions:
            time_us, low_us, high_us = times[vector]
            answers[one] = (factor * time_us, factor * low_us, factor * high_us)
            sources[one] = source
        warnings += beyond
    return OperatorTimes(
        answers=MappingProxyType(answers), sources=MappingProxyType(sources), warnings=tuple(warnings)
    )


def total_us(
    calls: Iterable[OperatorCall], times_us: Mapping[Question, NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Σ count · time of calls, float64 [configurations], added from left to right."""
    total: NDArray[np.float64] | None = None
    for call in calls:
        term = call.count * times_us[question(call)]
        total = term if total is None else total + term
    if total is None:
        return np.zeros_like(next(iter(times_us.values())))
    return total
