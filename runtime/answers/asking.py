"""Times of operator calls: every regressor is evaluated once for all calls, and warnings are collected."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from kernelcast.runtime.answers.predictor import Answer, Predictor
from kernelcast.runtime.answers.sources import (
    Source,
    added_half_width,
    at_least,
    left_out,
    source_of,
    widened,
)
from kernelcast.runtime.answers.warnings import (
    LARGE_ERROR,
    AnswerWarning,
    equal_features_warning,
    large_error_warning,
    left_out_warning,
    operator_transfer_warning,
    range_warnings,
    substitute_warning,
    warning_of,
)
from kernelcast.runtime.bundle.calibration import Factors, factor_of
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.bundle.fingerprint import SoftwareFingerprint
from kernelcast.runtime.bundle.manifest import Manifest
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.dataclass import dataclass, field
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.hardware.attention_kernels import (
    FUSED,
    TimeRatio,
    highest_flops_per_s,
    kernels_on,
    time_ratio,
)
from kernelcast.runtime.hardware.devices import Device, device_named
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.operators import OPERATORS, Direction, Key, Vector
from kernelcast.runtime.request.fields import AS_MEASURED
from kernelcast.runtime.step.op import Call

KERNEL = "attention_kernel"
"""Kind of the warning about another kernel than the measured one."""
_LENGTH, _HEAD_SIZE = map(list(OPERATORS[FUSED].features).index, ("l", "head_size"))
_US_PER_S = 1e6
_PACKAGE = "flash-attn="
_OF_PACKAGE = {"1": "flash-1", "2": "flash-2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChange:
    """Answers for the attention kernel `asked` on a device of `architecture`, from times in `manifest`'s bundle."""

    asked: str
    architecture: str
    manifest: Manifest

    def ratio(self, key: Key, vector: Vector, entry: RegressorEntry) -> TimeRatio | None:
        """What multiplies the time of `key`, answered by the regressor of `entry` for `vector`; None: nothing does."""
        if entry.operator != FUSED:
            return None
        measured = measured_kernel(entry, self.manifest)
        if measured == self.asked:
            return None
        size, length = vector[_HEAD_SIZE], vector[_LENGTH]
        return time_ratio(self.architecture, key[1], size, length, of=self.asked, over=measured)

    def least_us(self, key: Key, vector: Vector) -> float:
        """The shortest time of `key` for its own `vector`: no kernel that is final exceeds its published rates."""
        operator, direction = key
        held = highest_flops_per_s(self.architecture, direction, vector[-1], self.asked)
        return 0.0 if held is None else OPERATORS[operator].flops(direction, vector) / held * _US_PER_S

    def warning(self, key: Key, ratio: TimeRatio, entry: RegressorEntry) -> AnswerWarning:
        """The warning about an applied ratio, whose logarithm is published within ± `log_half_width`."""
        of = {"kind": KERNEL, "operator": FUSED, "direction": key[1].value}
        values = {**of, "asked": self.asked, "measured": measured_kernel(entry, self.manifest)}
        values |= values_of(ratio, "factor", "log_half_width", "source")
        return warning_of(KERNEL, values, severity=abs(math.log(ratio.factor)))


def kernel_change(asked: str, bundle: Bundle, factors: Factors | None = None) -> KernelChange | None:
    """The change from the measured attention kernel to the requested one, None for the measured one.

    DataError where the kernel does not run on the device, the measured one is not stated, no ratio of the two is
    published, or the attention factor of the stack (`factors`) was fitted to another kernel.
    """
    if asked == AS_MEASURED:
        return None
    device = measured_device(bundle)
    problem = _problem_of_stack(factors) or _problem(asked, bundle, device)
    if problem or device is None:
        others = () if _problem_of_stack(factors) else answerable_kernels(bundle)
        *first, last = (AS_MEASURED, *others)
        expected = f"{', '.join(first)} or {last}" if first else last
        raise DataError(field="attention_kernel", found=asked, expected=f"{expected}: {problem}")
    return KernelChange(asked=asked, architecture=device.architecture, manifest=bundle.manifest)


def answerable_kernels(bundle: Bundle) -> tuple[str, ...]:
    """Attention kernels that a bundle can predict, including the measured one."""
    device = measured_device(bundle)
    if device is None:
        return ()
    return tuple(one for one in kernels_on(device.architecture) if not _problem(one, bundle, device))


def measured_kernel(entry: RegressorEntry, manifest: Manifest) -> str:
    """The kernel of a regressor's rows: from the entry, else from the software; empty if neither states it."""
    if entry.kernel is not None:
        return entry.kernel
    found = {_kernel_of(one) for one in manifest.software}
    return found.pop() if len(found) == 1 else ""


def _kernel_of(software: SoftwareFingerprint) -> str:
    """What the collector calls: flash-attn where it is installed, else torch's, from 2.2 on FlashAttention 2."""
    for one in software.environment:
        if one.startswith(_PACKAGE):
            return _OF_PACKAGE.get(one.removeprefix(_PACKAGE).partition(".")[0], "")
    torch = re.match(r"(\d+)\.(\d+)", software.torch)
    return "flash-2" if software.cuda and torch and tuple(map(int, torch.groups())) >= (2, 2) else ""


def _problem(asked: str, bundle: Bundle, device: Device | None) -> str:
    """Why a kernel cannot be answered for, in words; empty where it can."""
    if device is None:
        return "the bundle was not measured on one device of the table of peaks"
    if asked not in kernels_on(device.architecture):
        return f"{asked} does not run on {device.architecture} ({device.title})"
    for direction in (Direction.FORWARD, Direction.BACKWARD):
        source = source_of((FUSED, direction), bundle.entries)
        if source is None:
            continue
        measured = measured_kernel(bundle.entries[source.answered_by], bundle.manifest)
        if not measured:
            return f"which kernel attention ({direction}) was measured with is not stated"
        if time_ratio(device.architecture, direction, 1, of=asked, over=measured) is None:
            return f"no ratio to the measured {measured} is published for {device.architecture} ({direction})"
    return ""


def _problem_of_stack(factors: Factors | None) -> str:
    """Why a stack rules out another kernel: its attention factor was fitted to steps with a kernel of its own."""
    if factors is None:
        return ""
    from kernelcast.runtime.stack import Stack

    if not isinstance(factors, Stack) or not factors.runs or "attention" in factors.fixed:
        return ""
    if "attention_kernel" in factors.options:
        return ""
    ran = factors.kernel or "a kernel that is not stated"
    return (
        f"the factor of attention of stack {factors.name} was fitted to steps with {ran}; "
        "leave out the stack, or the kernel"
    )


def measured_device(bundle: Bundle) -> Device | None:
    """The one GPU that a bundle was measured on; None for none, several kinds, or an unknown one."""
    names = {one.device_name for one in bundle.manifest.compute if one.kind != "cpu"}
    return device_named(names.pop()) if len(names) == 1 else None


Question: TypeAlias = tuple[Key, Vector, str]
"""Operator and direction, workload vector, and the role in which a step calls it."""

_UNKNOWN: Answer = (math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTimes:
    """Time, low and high end of the 90 % interval, in µs, of every distinct question; wider beyond the trained range,
    NaN for the `problems` that the bundle cannot answer. `sources` names the regressor; `concerned` are the warnings
    with their questions.
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

    def time_us(self, call: Call) -> float:
        """The time of one call; 0 where it is left out of the sum."""
        return self.answers.get(question(call), (0.0,))[0]


def question(call: Call) -> Question:
    return (call.operator, call.direction), call.shape, call.role


def ask(
    predictor: Predictor,
    questions: Iterable[Question],
    *,
    factors: Factors | None = None,
    with_warnings: bool = True,
    kernel: KernelChange | None = None,
) -> OperatorTimes:
    """The time of every question; a substitute answers for what the bundle lacks. `factors` multiply times and
    intervals, `kernel` is fused attention's. Without `with_warnings`, intervals are those inside of the trained
    ranges.
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
        out_of_range = range_warnings(entry, distinct)
        for warning, vectors in out_of_range.items():
            found.doubt(warning, {one for vector in vectors for one in asking[vector]})
        inside = set(distinct).difference(*out_of_range.values())
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
                role = "" if source.is_foreign else role
                added = added_half_width(entry, vector, role, is_inside=vector in inside)
                added += source.log_half_width + (0.0 if ratio is None else ratio.log_half_width)
                answer = widened(answer, added)
            time_us, low_us, high_us = answer
            answer = factor * time_us, factor * low_us, factor * high_us
            found.answers[one] = at_least(answer, least_us) if least_us else answer
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
