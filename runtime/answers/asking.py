"""Times of operator calls: every regressor is asked once for all of them, and what was doubtful is collected."""

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from kernelcast.runtime.answers.attention_kernel import KernelChange
from kernelcast.runtime.answers.predictor import Answer, Predictor
from kernelcast.runtime.answers.sources import Source, added_half_width, left_out, source_of, widened
from kernelcast.runtime.answers.warnings import (
    LARGE_ERROR,
    AnswerWarning,
    equal_features_warning,
    large_error_warning,
    left_out_warning,
    operator_transfer_warning,
    range_warnings,
    substitute_warning,
)
from kernelcast.runtime.bundle.calibration import Factors, factor_of
from kernelcast.runtime.dataclass import dataclass, field
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import Key, Vector
from kernelcast.runtime.step.op import Call

Question: TypeAlias = tuple[Key, Vector, str]
"""What is asked: operator and direction, the workload vector, and the role in which a step calls it."""

_UNKNOWN: Answer = (math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTimes:
    """Time, low and high end of the 90 % interval, in µs, of every distinct question; wider beyond the trained range.

    `sources` names the regressor that answered. Operators that are left out of the sum are not among the answers.
    `concerned` are the warnings, each with the questions whose answers it makes doubtful. `problems` names what the
    bundle has no answer to; those answers are NaN.
    """

    answers: dict[Question, Answer] = field(default_factory=dict)
    sources: dict[Question, Key] = field(default_factory=dict)
    concerned: dict[AnswerWarning, set[Question]] = field(default_factory=dict)
    problems: dict[Key, str] = field(default_factory=dict)

    def add(self, other: "OperatorTimes") -> None:
        self.answers.update(other.answers)
        self.sources.update(other.sources)
        for warning, questions in other.concerned.items():
            self.doubt(warning, questions)
        self.problems.update(other.problems)

    def doubt(self, warning: AnswerWarning, questions: Iterable[Question]) -> None:
        self.concerned.setdefault(warning, set()).update(questions)


def question(call: Call) -> Question:
    return call.key, call.shape, call.role


def ask(
    predictor: Predictor,
    questions: Iterable[Question],
    *,
    factors: Factors | None = None,
    with_warnings: bool = True,
    kernel: KernelChange | None = None,
) -> OperatorTimes:
    """Ask for the time of every question; a substitute, if any, answers for what the bundle lacks.

    With `factors`, times and intervals are multiplied by the operator's factor, and with `kernel` fused attention is
    answered for that one. Without `with_warnings`, ranges are not looked at, and intervals are those inside of them.
    """
    by_key: dict[Key, dict[Vector, list[str]]] = {}
    for key, vector, role in questions:
        by_key.setdefault(key, {}).setdefault(vector, []).append(role)
    entries = predictor.bundle.entries
    missing = left_out(by_key, entries)
    found = OperatorTimes()
    asked: dict[Key, list[tuple[Source, dict[Vector, list[str]]]]] = {}
    for key, vectors in by_key.items():
        if key[0] in missing:
            continue
        source = source_of(key, entries)
        if source is None:
            found.problems[key] = f"bundle {predictor.bundle.path} has no regressor for {key[0]} ({key[1]})"
            found.answers.update((one, _UNKNOWN) for one in _questions(key, vectors))
            continue
        if source.is_substitute:
            found.doubt(substitute_warning(source), _questions(key, vectors))
        asked.setdefault(source.answered_by, []).append((source, vectors))
    for answered_by, wanted in asked.items():
        _ask_one(predictor, answered_by, wanted, found, factors, kernel, with_warnings=with_warnings)
    if missing:
        found.doubt(left_out_warning(sorted(missing)), ())
    return found


def _ask_one(
    predictor: Predictor,
    answered_by: Key,
    wanted: list[tuple[Source, dict[Vector, list[str]]]],
    found: OperatorTimes,
    factors: Factors | None,
    kernel: KernelChange | None,
    *,
    with_warnings: bool,
) -> None:
    entry = predictor.bundle.entries[answered_by]
    sent = [
        (source, vector, _questions(source.key, {vector: roles}), *source.asked(vector, entry))
        for source, vectors in wanted
        for vector, roles in vectors.items()
    ]
    distinct = list(dict.fromkeys(vector for *_, vector, _ in sent))
    times = _answers(predictor, answered_by, distinct, found)
    if with_warnings:
        asking: dict[tuple[float, ...], set[Question]] = {}
        for source, own, questions, vector, _ in sent:
            asking.setdefault(vector, set()).update(questions)
            is_same = not (source.alike or source.gathered or source.order or source.asks)
            if entry.equal_features and vector != own and is_same:
                found.doubt(equal_features_warning(answered_by, entry.equal_features), questions)
        every = {one for questions in asking.values() for one in questions}
        if entry.validation_error > LARGE_ERROR:
            found.doubt(large_error_warning(answered_by, entry.validation_error), every)
        if entry.transfer is not None and entry.transfer.is_foreign:
            found.doubt(operator_transfer_warning(answered_by, entry.transfer), every)
        for warning, vectors in range_warnings(entry, distinct).items():
            found.doubt(warning, {one for vector in vectors for one in asking[vector]})
    for source, own, questions, vector, factor in sent:
        factor *= factor_of(factors, source.key[0])
        ratio = None if kernel is None else kernel.ratio(source.key, vector, entry)
        least_us = 0.0 if kernel is None or ratio is None else kernel.least_us(source.key, own)
        if kernel is not None and ratio is not None:
            factor *= ratio.factor
            if with_warnings:
                found.doubt(kernel.warning(source.key, ratio, entry), questions)
        for one in questions:
            role, answer = one[2], times[vector]
            if with_warnings:
                added = added_half_width(entry, vector, "" if source.is_foreign else role)
                added += source.log_half_width + (0.0 if ratio is None else ratio.log_half_width)
                answer = widened(answer, added)
            time_us, low_us, high_us = (max(factor * end, least_us) for end in answer)
            found.answers[one] = (time_us, low_us, high_us)
            found.sources[one] = answered_by


def _questions(key: Key, vectors: Mapping[Vector, Iterable[str]]) -> list[Question]:
    return [(key, vector, role) for vector, roles in vectors.items() for role in roles]


def _answers(
    predictor: Predictor, key: Key, vectors: list[Vector], found: OperatorTimes
) -> dict[Vector, Answer]:
    """Answers of one regressor; NaN for the vectors that it answers with nonsense."""
    try:
        return predictor.answers_of(*key, vectors)  # type: ignore[return-value]  # whole numbers
    except DataError as error:
        if len(vectors) == 1:
            found.problems.setdefault(key, str(error))
            return {vectors[0]: _UNKNOWN}
        half = len(vectors) // 2
        return _answers(predictor, key, vectors[:half], found) | _answers(
            predictor, key, vectors[half:], found
        )
