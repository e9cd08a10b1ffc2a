"""Tables of docs/scoreboard.md: predictions against published steps."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import mean, median
from typing import Any

from kernelcast.docs.markdown import percent, table
from kernelcast.validate.scoreboard import Point, Source

_percent, _signed, _whole = (
    partial(percent, digits=1),
    partial(percent, digits=1, is_signed=True),
    partial(percent, digits=0),
)
AUTHORS_CODE = {
    "perlmutter.toml": (-0.0809, 0.0413, -0.0569, -0.0581, -0.0094),
    "vista.toml": (-0.0919, -0.2815, -0.3858, -0.0911, -0.0547),
}
"""Errors of the method's authors' released code on their released data, run by us, in the order of the runs."""


LEVEL = 0.9
FEWEST_FOR_SHARE = 20
"""Of sources with fewer steps, coverage is a count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """All that the page shows: sources uncalibrated, by the closed form where it differs, and by stacks that were
    fitted without each step's model. `cpu` is the result of `validate run`, if kept.
    """

    plain: tuple[Source, ...]
    closed_form: tuple[Source, ...]
    stacked: tuple[Source, ...]
    cpu: Mapping[str, Any] | None

    def named(self, part: str, runs_file: str) -> Source:
        """A source of one part."""
        several: tuple[Source, ...] = getattr(self, part)
        return next(one for one in several if one.runs_file == runs_file)


Chosen = Callable[[Source], tuple[Point, ...]]


def targets(found: Board) -> Iterator[str]:
    """The rows of the table of targets: what was wanted and what is reached, uncalibrated and with a stack."""
    foundry = ("llm-foundry-a100-40gb.toml", "llm-foundry-a100-80gb.toml")
    rows: list[tuple[str, str, Sequence[str], Chosen, float | None, float | None]] = [
        ("LLM Foundry A100, one node", "plain", foundry, _one_node, 0.07, 0.035),
        ("of them 40 GB", "plain", foundry[:1], _one_node, None, None),
        ("of them 80 GB", "plain", foundry[1:], _one_node, None, None),
        ("LLM Foundry A100, 16 to 128 devices", "plain", foundry, _several_nodes, 0.09, 0.05),
        ("SimuMax B200, llama3-70b dense", "plain", ("simumax-b200.toml",), _all, 0.05, 0.035),
        ("Perlmutter, closed form", "closed_form", ("perlmutter.toml",), _all, 0.047, None),
        ("Perlmutter, simulated", "plain", ("perlmutter.toml",), _all, 0.055, 0.04),
        (
            "Vista, the three runs that its data explains, closed form",
            "closed_form",
            ("vista.toml",),
            _steady,
            0.06,
            None,
        ),
        ("Vista, the same three, simulated", "plain", ("vista.toml",), _steady, 0.06, 0.04),
        ("Vista, all five, closed form", "closed_form", ("vista.toml",), _all, None, None),
        ("Vista, all five, simulated", "plain", ("vista.toml",), _all, None, None),
    ]
    lines = []
    for name, part, files, chosen, most, most_stacked in rows:
        points = [point for file in files for point in chosen(found.named(part, file))]
        stacked = [point for file in files for point in chosen(found.named("stacked", file))]
        with_stack = ("", "–") if part == "closed_form" else _reached(mean_abs(stacked), most_stacked)
        lines.append((name, f"{len(points)}", *_reached(mean_abs(points), most), *with_stack))
    if found.cpu is not None:
        runs = found.cpu["runs"]
        worst = max(abs(run["error"]) for run in runs)
        wanted, reached = _reached(found.cpu["mean_abs_error"], 0.045)
        lines.append(
            (
                "a CPU, trained here, fastest of all repetitions",
                f"{len(runs)}",
                f"{wanted}, none above 9 %",
                f"{reached}, worst {_percent(worst)}",
                "",
                "–",
            )
        )
    for name, sources in (("uncalibrated", found.plain), ("stack", found.stacked)):
        share, width = coverage(sources), half_width(sources)
        inside = f"{_whole(share)} inside{'' if 0.85 <= share <= 0.95 else ', **missed**'}"
        wide = f"± {_percent(width)}{'' if width <= 0.15 else ', **missed**'}"
        both = ("85 to 95 % inside, ± 15 % at most", f"{inside}; {wide}")
        lines.append(
            (
                f"intervals, pooled, {name}",
                f"{sum(len(one.points) for one in sources)}",
                *(both if name == "uncalibrated" else ("", "–")),
                *(both if name == "stack" else ("", "–")),
            )
        )
    yield from table(
        ("mean absolute error", "steps", "wanted", "uncalibrated", "wanted", "stack, left out by model"),
        lines,
    )


def _reached(error: float, most: float | None) -> tuple[str, str]:
    """What was wanted, and what is reached; bold where that is not enough."""
    if most is None:
        return "", _percent(error)
    return f"≤ {_percent(most)}", _percent(error) if error <= most + 5e-4 else f"**{_percent(error)}**"


def _all(source: Source) -> tuple[Point, ...]:
    return source.points


def _steady(source: Source) -> tuple[Point, ...]:
    return tuple(one for one in source.points if one.is_steady)


def _one_node(source: Source) -> tuple[Point, ...]:
    return tuple(one for one in source.points if one.devices == 8)


def _several_nodes(source: Source) -> tuple[Point, ...]:
    return tuple(one for one in source.points if one.devices > 8)


def sources(found: Board) -> Iterator[str]:
    """A row per source: how far predictions are off, and its own predictor."""
    heads = (
        "source", "steps", "mean absolute error", "median", "bias", "stack: mean absolute error", "bias",
        "its own predictor",
    )  # fmt: skip
    rows = []
    for one in found.plain:
        errors = [point.error for point in one.points]
        stacked = [other for other in found.stacked if other.runs_file == one.runs_file]
        with_stack = (
            (_percent(mean_abs(stacked[0].points)), _signed(mean(point.error for point in stacked[0].points)))
            if stacked
            else ("–", "–")
        )
        rows.append(
            (
                f"{one.site}{' (yours)' if one.is_own else ''}, {one.asked} over {one.fabric}",
                f"{len(errors)}",
                _percent(mean_abs(one.points)),
                _percent(median(map(abs, errors))),
                _signed(mean(errors)),
                *with_stack,
                _own(one),
            )
        )
    yield from table(heads, rows)


def _own(source: Source) -> str:
    """Mean absolute error of the source's own predictions, and of their authors' released code."""
    published = [abs(one.published_error) for one in source.points if one.published_error is not None]
    if not published:
        return "–"
    code = AUTHORS_CODE.get(source.runs_file)
    released = "" if code is None else f"; released code {percent(mean(map(abs, code)))}"
    return percent(mean(published)) + released


def intervals(found: Board) -> Iterator[str]:
    """How many steps intervals hold, and how wide they are, by source and of all."""
    rows = []
    for one in found.plain:
        stacked = [other for other in found.stacked if other.runs_file == one.runs_file]
        rows.append((one.site, *_interval([one]), *(_interval(stacked) if stacked else ("–",) * 3)))
    pooled = []
    for sources in (found.plain, found.stacked):
        best, share = best_constant(sources)
        pooled += [
            _whole(coverage(sources)),
            _percent(half_width(sources)),
            f"{interval_score(sources):.2f} (constant: {best:.2f}, × ÷ {1 + share:.2f})",
        ]
    heads = (
        "source",
        "inside",
        "half-width",
        "interval score",
        "stack: inside",
        "half-width",
        "interval score",
    )
    yield from table(heads, [*rows, ("all, sources equally weighted", *pooled)])


def _interval(sources: Sequence[Source]) -> tuple[str, str, str]:
    [one] = sources
    inside, count = sum(is_inside(point) for point in one.points), len(one.points)
    share = f", {_whole(inside / count)}" if count >= FEWEST_FOR_SHARE else ""
    return f"{inside} of {count}{share}", _percent(half_width(sources)), f"{interval_score(sources):.2f}"


def kinds(found: Board) -> Iterator[str]:
    """Errors by number of devices, sequence length, layout and hardware, uncalibrated and with a stack."""
    rows = []
    for name, chosen in _kinds_of([point for one in found.plain for point in one.points]):
        plain, stacked = (
            [point for one in sources for point in one.points if chosen(point)]
            for sources in (found.plain, found.stacked)
        )
        rows.append(
            (
                name,
                f"{len(plain)}",
                *(text for points in (plain, stacked) for text in (_abs_of(points), _bias_of(points))),
            )
        )
    heads = ("steps", "count", "mean absolute error", "bias", "stack: mean absolute error", "bias")
    yield from table(heads, rows)


def _kinds_of(points: Sequence[Point]) -> Iterator[tuple[str, Callable[[Point], bool]]]:
    """Names of groups of steps, and who belongs to them; only those that have any."""
    for field, unit, bounds in (
        ("devices", "devices", (0, 8, 16, 64, 1 << 40)),
        ("tokens", "tokens", (0, 2048, 4096, 8192, 1 << 40)),
    ):
        for low, high in pairwise(bounds):
            name = f"more than {low:,} {unit}" if high == bounds[-1] else f"{low + 1:,} to {high:,} {unit}"

            def within(point: Point, field: str = field, low: int = low, high: int = high) -> bool:
                return bool(low < getattr(point, field) <= high)

            if any(map(within, points)):
                yield name, within
    for field in ("layout", "hardware"):
        for value in dict.fromkeys(getattr(one, field) for one in points):

            def same(point: Point, field: str = field, value: str = value) -> bool:
                return bool(getattr(point, field) == value)

            yield value, same


def _abs_of(points: Sequence[Point]) -> str:
    return _percent(mean_abs(points)) if points else "–"


def _bias_of(points: Sequence[Point]) -> str:
    return _signed(mean(one.error for one in points)) if points else "–"


def memory(document: Mapping[str, Any]) -> Iterator[str]:
    """Steps that are predicted to fit, the tightest of them, and errors where memory was measured."""
    rows = []
    for one in document["files"]:
        steps = [step for step in one["steps"] if step["predicted_s"] is not None]
        fit = sum(step["fits"] is True for step in steps)
        left = min((step["margin_gib"] for step in steps if step["margin_gib"] is not None), default=None)
        errors = [error for step in steps for error in step["memory_errors"]]
        rows.append(
            (
                one["site"],
                f"{fit} of {len(steps)}",
                "–" if left is None else f"{left:.1f} GiB",
                f"{len(errors)} devices" if errors else "–",
                _percent(mean(map(abs, errors))) if errors else "–",
                f"{max(errors, key=abs):+.2%}".replace("%", " %") if errors else "–",
            )
        )
    heads = (
        "source",
        "predicted to fit",
        "least left on a device",
        "memory measured",
        "mean absolute error",
        "largest",
    )
    yield from table(heads, rows)


def own_predictors(found: Board) -> Iterator[str]:
    """Step by step, where a source published predictions of its own."""
    rows = []
    for one in found.plain:
        closed = [other for other in found.closed_form if other.runs_file == one.runs_file]
        stacked = [other for other in found.stacked if other.runs_file == one.runs_file]
        code = AUTHORS_CODE.get(one.runs_file)
        for index, point in enumerate(one.points):
            if point.published_error is not None:
                rows.append(
                    (
                        f"{one.site}, {point.label}{'' if point.is_steady else ' (unsteady)'}",
                        f"{point.measured_s:.3g} s",
                        _signed(point.error),
                        _signed(closed[0].points[index].error) if closed else "–",
                        _signed(stacked[0].points[index].error) if stacked else "–",
                        _signed(point.published_error),
                        _signed(code[index]) if code else "–",
                    )
                )
    heads = (
        "step",
        "measured",
        "simulated",
        "closed form",
        "stack, left out",
        "its own predictor",
        "released code",
    )
    yield from table(heads, rows)


def mean_abs(points: Sequence[Point]) -> float:
    """Mean absolute error."""
    return mean(abs(one.error) for one in points)


def is_inside(point: Point) -> bool:
    """Whether the measured step lies in the interval."""
    low_s, high_s = point.interval_s
    return low_s <= point.measured_s <= high_s


def width(point: Point) -> float:
    """The interval, as a fraction of the predicted step."""
    low_s, high_s = point.interval_s
    return (high_s - low_s) / point.predicted_s


def score(point: Point) -> float:
    """Interval score of Gneiting and Raftery (2007, section 6.2) on log(time): the smaller the better."""
    low, high, measured = (math.log(one) for one in (*point.interval_s, point.measured_s))
    beyond = max(0.0, low - measured, measured - high)
    return high - low + 2 / (1 - LEVEL) * beyond


def with_constant(point: Point, share: float) -> Point:
    """The same with a constant interval, a factor of 1 + `share` up and down."""
    return replace(point, interval_s=(point.predicted_s / (1 + share), point.predicted_s * (1 + share)))


def coverage(sources: Sequence[Source]) -> float:
    """Share of steps in their interval, sources equally weighted."""
    return mean(mean(is_inside(point) for point in one.points) for one in sources)


def half_width(sources: Sequence[Source]) -> float:
    """Mean over the sources of the median half-width."""
    return mean(median(width(point) / 2 for point in one.points) for one in sources)


def interval_score(sources: Sequence[Source]) -> float:
    """Mean interval score, sources equally weighted."""
    return mean(mean(score(point) for point in one.points) for one in sources)


def best_constant(sources: Sequence[Source]) -> tuple[float, float]:
    """Interval score and width of the one constant interval, a factor up and down, that scores best on these steps."""
    return min(
        (
            interval_score(
                [
                    replace(one, points=tuple(with_constant(point, share) for point in one.points))
                    for one in sources
                ]
            ),
            share,
        )
        for share in (number / 100 for number in range(1, 100))
    )
