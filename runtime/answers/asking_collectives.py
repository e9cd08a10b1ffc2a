"""Questions about collectives where a fabric is known: which are answered by measured rows, which by a description."""

import math
from collections.abc import Iterable, Sequence

from kernelcast.runtime.answers.asking import OperatorTimes, Question, ask
from kernelcast.runtime.answers.capping import at_least
from kernelcast.runtime.answers.collective_times import Collectives, scaled_entries
from kernelcast.runtime.answers.predictor import Answer
from kernelcast.runtime.answers.warnings import extended_warning, fabric_warning
from kernelcast.runtime.bundle.calibration import Factors, factor_of
from kernelcast.runtime.bundle.regressor_entry import Layout
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.element_types import ELEMENT_BYTES
from kernelcast.runtime.operators import Key

_UNKNOWN: Answer = (math.nan, math.nan, math.nan)


def ask_over_fabric(
    collectives: Collectives, questions: Iterable[Question], factors: Factors | None, *, with_warnings: bool
) -> OperatorTimes:
    """Ask for collectives over the fabric of `collectives`.

    A calibration was fitted with the bundle's own fabric: it does not change times over another one.
    """
    source = collectives.source
    factors = None if source.is_asked else factors
    measured: list[Question] = []
    described: dict[Key, dict[Layout, dict[float, list[Question]]]] = {}
    for one in dict.fromkeys(questions):
        key, (entries, nodes, gpus), _ = one
        if source.is_measured(key, (nodes, gpus)):
            measured.append(one)
        else:
            described.setdefault(key, {}).setdefault((nodes, gpus), {}).setdefault(entries, []).append(one)
    found = _measured(collectives, measured, factors, with_warnings=with_warnings)
    for key, layouts in described.items():
        for layout, sizes in layouts.items():
            _describe(collectives, key, layout, sizes, found, factor_of(factors, key[0]))
    if with_warnings:
        _warn(collectives, described, found)
    return found


def _measured(
    collectives: Collectives, questions: list[Question], factors: Factors | None, *, with_warnings: bool
) -> OperatorTimes:
    """Answers of the fabric's regressors, whose elements may have another size; never below what the wire allows."""
    source = collectives.source
    if source.predictor is None or not questions:
        return OperatorTimes()
    of, to = source.element_bytes, ELEMENT_BYTES[source.predictor.bundle.manifest.dtype]
    asked = {
        one: (one[0], (scaled_entries(one[1][0], element_bytes=of, to=to), *one[1][1:]), one[2])
        for one in questions
    }
    answered = ask(source.predictor, asked.values(), factors=factors, with_warnings=with_warnings)
    found = OperatorTimes(problems=answered.problems)
    for warning, questions_of in answered.concerned.items():
        found.doubt(warning, (one for one, scaled in asked.items() if scaled in questions_of))
    if with_warnings and source.is_asked:
        names = sorted({one[0][0] for one in asked})
        found.doubt(fabric_warning(names, fabric=source.name, is_measured=True), asked)
    by_layout: dict[tuple[Key, Layout], list[Question]] = {}
    for one, scaled in asked.items():
        key, (_, nodes, gpus), _ = one
        by_layout.setdefault((key, (nodes, gpus)), []).append(one)
        if scaled in answered.sources:
            found.sources[one] = answered.sources[scaled]
    for (key, layout), own in by_layout.items():
        least_us = _least_us(collectives, key, layout, [one[1][0] for one in own])
        for one, least in zip(own, least_us, strict=True):
            found.answers[one] = at_least(answered.answers[asked[one]], least)
    return found


def _least_us(
    collectives: Collectives, key: Key, layout: Layout, entries: Sequence[float]
) -> Sequence[float]:
    """What the wire allows; 0 where no description has the layout, which may have been measured all the same."""
    source = collectives.source
    try:
        if source.fabric is not None:
            setting = source.setting(layout, collectives.gpus_per_node)
            return list(map(float, source.least_us(key, entries, setting)))
    except UsageError:
        pass
    return [0.0] * len(entries)


def _describe(
    collectives: Collectives,
    key: Key,
    layout: Layout,
    sizes: dict[float, list[Question]],
    found: OperatorTimes,
    factor: float,
) -> None:
    """Answer one operator's messages in one layout from the description."""
    source = collectives.source
    answers = [_UNKNOWN] * len(sizes)
    if source.fabric is None:
        found.problems[key] = f"fabric {source.name} has no regressor for {key[0]}"
    else:
        try:
            setting = source.setting(layout, collectives.gpus_per_node)
            answers = source.answers(key, list(sizes), setting)
        except UsageError as error:
            found.problems[key] = str(error)
    for questions, (time_us, low_us, high_us) in zip(sizes.values(), answers, strict=True):
        for one in questions:
            found.answers[one] = (factor * time_us, factor * low_us, factor * high_us)
            found.sources[one] = key


def _warn(
    collectives: Collectives,
    described: dict[Key, dict[Layout, dict[float, list[Question]]]],
    found: OperatorTimes,
) -> None:
    source = collectives.source
    alone = [key for key in described if source.entry_of(key) is None and key not in found.problems]
    if alone:
        warning = fabric_warning(sorted(key[0] for key in alone), fabric=source.name, is_measured=False)
        found.doubt(
            warning, (one for key in alone for sizes in described[key].values() for one in _all(sizes))
        )
    for key, layouts in described.items():
        entry = source.entry_of(key)
        if entry is None:
            continue
        for layout, sizes in layouts.items():
            extended = extended_warning(key[0], layout, entry.layouts, fabric=source.name)
            found.doubt(extended, _all(sizes))


def _all(sizes: dict[float, list[Question]]) -> list[Question]:
    return [one for questions in sizes.values() for one in questions]
