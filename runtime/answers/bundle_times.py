"""Times of many questions by the regressors of one bundle, with random draws, not below what devices can do.

Where a fabric is known, collectives are answered by measured rows or by a description.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.answers.asking import KernelChange, OperatorTimes, Question, ask, measured_device
from kernelcast.runtime.answers.collective_times import Collectives, scaled_entries
from kernelcast.runtime.answers.predictor import Answer, Predictor
from kernelcast.runtime.answers.sources import at_least
from kernelcast.runtime.answers.uncertainty import drawn_times
from kernelcast.runtime.answers.warnings import extended_warning, fabric_warning
from kernelcast.runtime.bundle.calibration import Factors, factor_of
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.bundle.regressor_entry import Layout
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.collectives import Setting, least_us
from kernelcast.runtime.hardware.devices import ELEMENT_BYTES, device_named, devices
from kernelcast.runtime.hardware.fabric import node_of
from kernelcast.runtime.hardware.limits import LAUNCH_FLOOR_US, clock_scale, limits, sustained_flops_per_s
from kernelcast.runtime.operators import OPERATORS, Direction, Key, Vector
from kernelcast.runtime.request.fields import Float8Recipe
from kernelcast.runtime.step.layers.linear import TRANSPOSITION
from kernelcast.runtime.step.modules import RECIPES

_US_PER_S = 1e6
_NOTHING_US = 1e-6
"""A copy that the device's products do not need; above 0, as logarithms are taken."""


def cap_by_device(bundle: Bundle, found: OperatorTimes, power_limit_w: float = 0.0) -> None:
    """Raise answers to what the device allows, where it is known: its peaks, and its sustained FLOP/s, measured
    elsewhere. Times that this device itself took under sustained load stay, unless the step's devices have another
    power limit, which lowers the clock of every operator that computing limits.
    """
    device, trained_in = measured_device(bundle), bundle.manifest.dtype
    if device is None or trained_in not in ELEMENT_BYTES:
        return
    slower = 1 / clock_scale(device, power_limit_w)
    for one, answer in found.answers.items():
        (operator, direction), vector, role = one
        if role == TRANSPOSITION and device.architecture == "Blackwell":
            found.answers[one] = 3 * (_NOTHING_US,)
            continue
        row = OPERATORS[operator]
        if row.is_collective or math.isnan(answer[0]):
            continue
        dtype = row.dtype_in(trained_in)
        held = _held_flops_per_s(device.name, dtype, power_limit_w)
        least_us, flops, is_computing = _least(device.name, operator, direction, vector, dtype)
        source = found.sources.get(one, (operator, direction))
        if source[0] != operator:
            least_us = max(least_us, row.kernels.get(direction, 1) * LAUNCH_FLOOR_US)
        entry = bundle.entries.get(source)
        own = entry is not None and entry.load.is_sustained and not power_limit_w
        if held is not None and not own:
            least_us = max(least_us, flops / held * _US_PER_S)
        if slower != 1 and is_computing:
            time_us, low_us, high_us = answer
            answer = (slower * time_us, slower * low_us, slower * high_us)
        found.answers[one] = at_least(answer, least_us)


@lru_cache(maxsize=1 << 8)
def _held_flops_per_s(device_name: str, dtype: str, power_limit_w: float) -> float | None:
    device = device_named(device_name)
    return None if device is None else sustained_flops_per_s(device, dtype, power_limit_w)


@lru_cache(maxsize=1 << 13)  # steps of similar layouts ask for the same workloads
def _least(
    device_name: str, operator: str, direction: Direction, vector: Vector, dtype: str
) -> tuple[float, float, bool]:
    """The least time of a workload in µs, its FLOPs where their rate is known, and whether they are what limits it."""
    known = limits(
        OPERATORS[operator],
        direction,
        vector,
        dtype=dtype,
        element_bytes=ELEMENT_BYTES[dtype],
        device=device_named(device_name),
    )
    if not known:
        return 0.0, 0.0, False
    slowest = max(known, key=lambda limit: limit.least_us)
    flops = sum(limit.amount for limit in known if limit.unit == "FLOP")
    return slowest.least_us, flops, slowest.unit == "FLOP"


def cap_by_links(bundle: Bundle, found: OperatorTimes) -> None:
    """Raise answers inside a node to what the links of the bundle's device allow, where the device is known."""
    device = measured_device(bundle)
    element_bytes = ELEMENT_BYTES.get(bundle.manifest.dtype)
    by_node: dict[tuple[str, int], list[Question]] = {}
    for one in found.answers:
        (operator, _), vector, _ = one
        if OPERATORS[operator].is_collective and vector[1] == 1 and vector[2] > 1:
            by_node.setdefault((operator, int(vector[2])), []).append(one)
    for (operator, size), questions in by_node.items():
        node = None if device is None else node_of(device.name, size)
        if node is None or element_bytes is None:
            return
        sizes = [element_bytes * one[1][0] for one in questions]
        least_of = least_us(operator, sizes, Setting(fabric=node, nodes=1, gpus_per_node=size))
        for one, least in zip(questions, least_of.tolist(), strict=True):
            found.answers[one] = at_least(found.answers[one], least)


_UNKNOWN: Answer = (math.nan, math.nan, math.nan)


def ask_over_fabric(
    collectives: Collectives, questions: Iterable[Question], factors: Factors | None, *, with_warnings: bool
) -> OperatorTimes:
    """Ask over the fabric of `collectives`; a calibration, fitted with the bundle's own, changes no other's times."""
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


class BundleTimes:
    """Answers questions with the predicted times and `draws` random ones; `problems` are those it cannot answer.
    `asked` holds all answers with their warnings if `with_warnings` is set; `kernel` and `power_limit_w` where they are
    not the usual ones.
    """

    def __init__(
        self,
        predictor: Predictor,
        *,
        factors: Factors | None = None,
        draws: int = 0,
        with_warnings: bool = False,
        collectives: Collectives | None = None,
        kernel: KernelChange | None = None,
        power_limit_w: float = 0.0,
    ) -> None:
        self.predictor, self.factors, self.collectives, self.kernel = predictor, factors, collectives, kernel
        self.draws, self.with_warnings, self.power_limit_w = draws, with_warnings, power_limit_w
        self.asked = OperatorTimes()
        self.problems: dict[Key, str] = {}

    def __call__(self, asked: Sequence[Question]) -> NDArray[np.float64]:
        """Times in µs, float64 [questions, 1 + draws]; 0 of what the sum goes without, NaN of a problem."""
        found = self.ask(asked)
        self.problems = found.problems | self.problems
        if self.with_warnings:
            self.asked.add(found)
        times_us = np.zeros((len(asked), 1 + self.draws))
        answered = [row for row, one in enumerate(asked) if one in found.answers]
        # Random times are drawn of answers alone; a problem has none.
        draws = 0 if found.problems else self.draws
        times_us[answered] = drawn_times(found, [asked[row] for row in answered], draws, self.factors)
        return times_us

    def ask(self, questions: Sequence[Question]) -> OperatorTimes:
        """Answers of the bundle's regressors; `collectives`, if any, answers for collectives."""
        over_fabric: list[Question] = []
        others: list[Question] = []
        for one in questions:
            is_over_fabric = self.collectives is not None and OPERATORS[one[0][0]].is_collective
            (over_fabric if is_over_fabric else others).append(one)
        alike: dict[str, Any] = {"factors": self.factors, "with_warnings": self.with_warnings}
        found = ask(self.predictor, others, **alike, kernel=self.kernel)
        cap_by_device(self.predictor.bundle, found, self.power_limit_w)
        if self.collectives is None:
            cap_by_links(self.predictor.bundle, found)
        else:
            found.add(ask_over_fabric(self.collectives, over_fabric, **alike))
        return found


def check_format(recipe: Float8Recipe, bundle: Bundle) -> None:
    """Check that the bundle's known devices have units for a recipe; else UsageError, which names devices that have."""
    if recipe == "none":
        return
    units = RECIPES[recipe].units
    for fingerprint in bundle.manifest.compute:
        device = device_named(fingerprint.device_name)
        if device is not None and units not in device.flops_per_s:
            known = ", ".join(name for name, one in devices().items() if units in one.flops_per_s)
            raise UsageError(
                field="fp8_recipe",
                found=recipe,
                expected=f"none or another recipe: {device.title} has no units for {units}; {known} have",
            )
