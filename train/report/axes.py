"""What the report's plots are drawn on: logarithmic axes with few, round, labelled ticks, and marks of data."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernelcast.runtime.views.formatting import round_step, three_digits
from kernelcast.runtime.views.page import Markup, element, number, raw

Tick = tuple[float, str]
"""Position in pixels, label."""

# Mantissas from coarse to fine: whole powers of ten first.
_MANTISSAS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))
# Errors as ratios: percent near 1, factors beyond.
_RATIOS = (1.001, 1.002, 1.005, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0, 10.0, 30.0, 100.0, 1000.0, 1e4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle of the SVG, in pixels."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAxis:
    """A logarithmic axis: values from `low` to `high` (both above 0) at pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Pixels of values, of the same shape."""
        share = np.log(np.asarray(values) / self.low) / math.log(self.high / self.low)
        return np.asarray(self.start + share * (self.end - self.start))

    def ticks(
        self, label: Callable[[float], str], values: Sequence[float] = (), *, most: int = 6
    ) -> list[Tick]:
        """Round values, or the given ones, with their labels."""
        chosen = values or log_ticks(self.low, self.high, most=most)
        return [(float(self.at(value)), label(value)) for value in chosen]


def frame(
    box: Box, x_ticks: Sequence[Tick], y_ticks: Sequence[Tick], x_name: str, y_name: str
) -> Iterator[Markup]:
    """Grid lines, tick labels below and at the left, and the names of both axes."""
    moves = [f"M{number(x)} {number(box.top)}V{number(box.bottom)}" for x, _ in x_ticks]
    moves += [f"M{number(box.left)} {number(y)}H{number(box.right)}" for y, _ in y_ticks]
    yield element("path", d=raw("".join(moves)), class_="grid")
    for x, text in x_ticks:
        yield element("text", text, x=x, y=box.bottom + 16, class_="tick")
    for y, text in y_ticks:
        yield element("text", text, x=box.left - 6, y=y + 4, class_="label")
    middle_x, middle_y = (box.left + box.right) / 2, (box.top + box.bottom) / 2
    if x_name:
        yield element("text", x_name, x=middle_x, y=box.bottom + 34, class_="axis-name")
    if y_name:
        turned = f"translate(12 {number(middle_y)}) rotate(-90)"
        yield element("text", y_name, transform=turned, class_="axis-name")


def marks(x: npt.ArrayLike, y: npt.ArrayLike, colour: str, *, shape: str = "h0", width: float = 4) -> Markup:
    """Points as one path: at every place, to half a pixel, the relative path `shape`, drawn `width` wide.

    `h0` is a dot. Points that share a place are drawn once, which bounds the size of the SVG.
    """
    places = np.unique(np.round(np.column_stack([x, y]) * 2), axis=0) / 2
    moves = "".join(f"M{number(left)} {number(top)}{shape}" for left, top in places.tolist())
    return element("path", d=raw(moves), fill=colour, stroke=colour, stroke_width=width, class_="points")


def polygon(x: Sequence[float], y: Sequence[float], **attributes: str | float) -> Markup:
    """A closed line through points."""
    corners = "L".join(f"{number(left)} {number(top)}" for left, top in zip(x, y, strict=True))
    return element("path", d=raw(f"M{corners}z"), **attributes)


def log_ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Round numbers from `low` to `high` (both above 0) on a logarithmic axis: 2 to `most` where possible."""
    for mantissas in _MANTISSAS:
        found = _between(low, high, mantissas)
        if len(found) >= 3:
            break
    if len(found) < 2:
        # Too narrow for powers of ten: multiples of a round step.
        step = round_step((high - low) / 3)
        found = [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return found[:: math.ceil(len(found) / most)]


def ratio_ticks(largest: float) -> list[float]:
    """Ratios around 1, mirrored on a logarithmic axis, out to `largest` (above 1): the two outermost round ones."""
    outer = max((ratio for ratio in _RATIOS if ratio <= largest), default=_RATIOS[0])
    # The inner one must overlap neither the outer one nor the 0 in the middle.
    spaced = [r for r in _RATIOS if 0.2 * math.log(largest) < math.log(r) < 0.6 * math.log(outer)]
    return sorted({1.0, *(tick for ratio in (outer, *spaced[-1:]) for tick in (ratio, _mirrored(ratio)))})


def error_tick(ratio: float) -> str:
    """Predicted / measured as an error: `+5 %`, `−20 %`; factors of 2 and more as `× 4` and `÷ 4`."""
    if max(ratio, 1 / ratio) > 1.9:
        return f"× {three_digits(ratio)}" if ratio > 1 else f"÷ {three_digits(1 / ratio)}"
    percent = (ratio - 1) * 100
    return "0" if ratio == 1 else f"{percent:+.2g} %".replace("-", "−")


def _mirrored(ratio: float) -> float:
    # Small errors mirror as percent: −10 %, not the −9.09 % of the inverse factor.
    return 2 - ratio if ratio < 1.4 else 1 / ratio


def _between(low: float, high: float, mantissas: Sequence[float]) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [mantissa * 10.0**decade for decade in decades for mantissa in mantissas]
    return [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
