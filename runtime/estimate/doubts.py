"""Doubts about an answer, for readers: warnings by cause, with their share of the step, one grade, and provenance."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import fsum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kernelcast.runtime.answers.asking import Question
from kernelcast.runtime.answers.fabric_choice import FabricUse
from kernelcast.runtime.answers.warnings import AnswerWarning, Cause
from kernelcast.runtime.bundle.calibration import CalibrationUse
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.dataclass import asdict, dataclass, replace
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.record import Record

if TYPE_CHECKING:
    from kernelcast.runtime.stack import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the times come from: the bundle, the measured hardware and software, readable. None: no `calibration` in
    the bundle, no `stack`, `collectives` the bundle's own and not described.
    """

    bundle: str
    bundle_digest: str
    dataset_digest: str
    kernelcast_version: str
    created_at: str
    dtype: str
    statistic: str
    compute: tuple[str, ...]
    fabric: tuple[str, ...]
    software: tuple[str, ...]
    calibration: CalibrationUse | None = None
    collectives: FabricUse | None = None
    data: tuple[str, ...] = ()
    stack: Stack | None = None

    def factor_of(self, operator: str) -> float:
        """The factor of a stack or an applied calibration in an operator's time."""
        if self.stack is not None:
            return self.stack.factor_of(operator)
        if self.calibration is None or not self.calibration.applied:
            return 1.0
        return self.calibration.factors[OPERATORS[operator].operator_class.value]

    def to_dict(self) -> dict[str, Any]:
        values = asdict(replace(self, stack=None)) | {
            "stack": None if self.stack is None else self.stack.provenance()
        }
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def provenance_of(bundle: Bundle, timeline: str, calibrated: bool, stack: Stack | None) -> Provenance:
    """Provenance of answers with one timeline, by a bundle with or without its calibration, or with a stack."""
    manifest = bundle.manifest
    used = None
    if manifest.calibration is not None:
        instead = "" if stack is None else f"stack {stack.name}"
        used = CalibrationUse.of(manifest.calibration, timeline=timeline, wanted=calibrated, instead=instead)
    described: dict[str, Any] = {
        name: tuple(one.description for one in getattr(manifest, name))
        for name in ("compute", "fabric", "software")
    }
    return Provenance(
        bundle=str(bundle.path),
        bundle_digest=bundle.digest,
        **values_of(manifest, "dataset_digest", "kernelcast_version", "created_at", "dtype", "statistic"),
        **described,
        calibration=used,
        stack=stack,
    )


def other_software(stated: str, provenance: Provenance) -> tuple[str, ...]:
    """Items of `stated` (`torch 2.9, FlashAttention 3`) that no measurement names, in any case; UsageError for none."""
    wanted = [one.strip() for one in stated.split(",") if one.strip()]
    if not wanted:
        raise UsageError(
            f"--software is {stated!r:.80}, expected names such as 'torch 2.9, FlashAttention 3'"
        )
    known = " ".join((*provenance.data, *provenance.software)).lower()
    return tuple(one for one in wanted if one.lower() not in known)


def software_warning(others: Sequence[str], provenance: Provenance) -> str:
    """One line about software that the measurements do not name; empty without any."""
    if not others:
        return ""
    measured = "; ".join(provenance.data or provenance.software)
    return f"software: not measured with {', '.join(others)}, but with {measured}"


LEAST_SHARE = 0.001
"""Warnings about a smaller share of the operators' time are not shown; JSON keeps them."""
MOST_LINES = 6
"""Lines of warnings in a text, including the hint at the others."""
_MOST_TOPICS = 3

GOOD, ROUGH, GUESS = "good", "rough", "guess"
_MOST_HALF_WIDTH = ((GOOD, 0.15), (ROUGH, 0.30))
"""Largest half-width of the 90 % interval of each grade, as a fraction of the step; wider ones are a guess."""
_LARGE_SHARE = 0.1
"""A cause of doubt about less of the step is no reason."""

_IN_WORDS: Mapping[Cause, str] = MappingProxyType(
    {
        Cause.LEFT_OUT: "left out of the sum",
        Cause.EXTRAPOLATED: "larger or smaller than what was measured",
        Cause.SUBSTITUTED: "predicted from substitutes",
        Cause.DESCRIBED: "computed from described links",
        Cause.TRANSFERRED: "measured on another device",
        Cause.DOUBTFUL: "predicted by a regressor with large errors",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """All warnings of one cause in one sentence. `share` is the concerned calls' of all operators' time, summed over
    stages; None of what is left out. `has_influence`: worth a reader's time.
    """

    cause: Cause
    summary: str
    share: float | None
    has_influence: bool
    warnings: tuple[AnswerWarning, ...]

    @property
    def line(self) -> str:
        """For readers: `extrapolated: gemm up to 2.4× beyond measured n (12.0 % of the step)`."""
        share = "" if self.share is None else f" ({100 * self.share:.1f} % of the step)"
        return f"{self.cause.in_words}: {self.summary}{share}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `warnings` is their number."""
        return {
            "cause": self.cause.value,
            **values_of(self, "summary", "share", "has_influence"),
            "warnings": len(self.warnings),
        }


def share_of(questions: Collection[Question], times_s: Mapping[Question, float]) -> float | None:
    """Part of the time that goes to some questions, 0 to 1; None without any."""
    whole_s = fsum(times_s.values())
    if not questions or whole_s <= 0:
        return None
    # An exact sum: the order of a set differs between processes, the answer must not.
    return min(1.0, fsum(filter(None, map(times_s.get, questions))) / whole_s)


def grouped(
    concerned: Mapping[AnswerWarning, Collection[Question]], times_s: Mapping[Question, float]
) -> tuple[Doubt, ...]:
    """Warnings by cause, the most severe cause first. `concerned` are the questions that each is about."""
    return tuple(
        _doubt(cause, own, concerned, times_s)
        for cause in Cause
        if (own := [warning for warning in concerned if warning.cause is cause])
    )


def warning_lines(doubts: Sequence[Doubt], *, hint: str = "--json has each warning") -> list[str]:
    """The lines shown for some doubts, at most `MOST_LINES`; the last one points to the omitted warnings."""
    lines = [doubt.line for doubt in doubts if doubt.has_influence][: MOST_LINES - 1]
    count = sum(len(doubt.warnings) for doubt in doubts if doubt.has_influence)
    return [*lines, f"{count} warnings in all ({hint})"] if count > len(lines) else lines


def _doubt(
    cause: Cause,
    warnings: Sequence[AnswerWarning],
    concerned: Mapping[AnswerWarning, Collection[Question]],
    times_s: Mapping[Question, float],
) -> Doubt:
    share = _share(warnings, concerned, times_s)
    topics: dict[str, list[AnswerWarning]] = {}
    for warning in warnings:
        topics.setdefault(warning.topic, []).append(warning)
    shares = {topic: _share(own, concerned, times_s) for topic, own in topics.items()}
    # An operator left out of the sum has no time; it comes first.
    order = sorted(topics, key=lambda topic: -_or_all(shares[topic]))
    shown = [topic for topic in order if _or_all(shares[topic]) >= LEAST_SHARE] or order
    clauses = [_worst(topics[topic], concerned, times_s).brief for topic in shown[:_MOST_TOPICS]]
    if len(shown) > _MOST_TOPICS:
        clauses.append(f"{len(shown) - _MOST_TOPICS} more")
    return Doubt(
        cause=cause,
        summary="; ".join(clauses),
        share=share,
        has_influence=_or_all(share) >= LEAST_SHARE,
        warnings=tuple(warnings),
    )


def _worst(
    warnings: Sequence[AnswerWarning],
    concerned: Mapping[AnswerWarning, Collection[Question]],
    times_s: Mapping[Question, float],
) -> AnswerWarning:
    """The most severe warning of one topic, preferably one with influence."""
    with_influence = [one for one in warnings if _or_all(_share([one], concerned, times_s)) >= LEAST_SHARE]
    return max(with_influence or warnings, key=lambda one: one.severity)


def _share(
    warnings: Iterable[AnswerWarning],
    concerned: Mapping[AnswerWarning, Collection[Question]],
    times_s: Mapping[Question, float],
) -> float | None:
    return share_of({one for warning in warnings for one in concerned[warning]}, times_s)


def _or_all(share: float | None) -> float:
    return 1.0 if share is None else share


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade(Record):
    """`grade` is good, rough or guess by the width of the 90 % interval; `reason` is a clause."""

    grade: str
    reason: str

    def __str__(self) -> str:
        return f"{self.grade}: {self.reason}"


def grade_of(
    step_s: float, interval_s: tuple[float, float], doubts: Sequence[Doubt], uncompared: str = ""
) -> Grade:
    """The grade of a step; the reason is its interval and the most severe cause that concerns a tenth of it.

    A step is not good if no similar step was ever compared; `uncompared` is then the reason.
    """
    low, high = (one_s / step_s - 1 for one_s in interval_s)
    grade = next((name for name, most in _MOST_HALF_WIDTH if (high - low) / 2 <= most), GUESS)
    reason = f"in 9 of 10 cases {_side(low)} to {_side(high)}"
    large = [one for one in doubts if one.share is None or one.share >= _LARGE_SHARE]
    if uncompared:
        return Grade(grade=ROUGH if grade == GOOD else grade, reason=f"{reason}; {uncompared}")
    if grade != GOOD and large:
        worst = large[0]
        part = "an operator" if worst.share is None else f"{worst.share * 100:.0f} % of the step"
        reason += f"; {part} is {_IN_WORDS[worst.cause]}"
    return Grade(grade=grade, reason=reason)


def _side(change: float) -> str:
    return f"{abs(change) * 100:.0f} % {'shorter' if change < 0 else 'longer'}"


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
    assumed_s, transferred_s = (
        fsum(filter(None, map(times_s.get, own))) for own in (assumed, transferred - assumed)
    )
    return KnownShares(
        measured=max(0.0, 1 - (assumed_s + transferred_s) / whole_s),
        transferred=transferred_s / whole_s,
        assumed=assumed_s / whole_s,
    )


def origins(concerned: Collection[AnswerWarning]) -> tuple[str, ...]:
    """Devices whose measurements answered for this one, by name."""
    return tuple(sorted({one.values["origin"] for one in concerned if "origin" in one.values}))
