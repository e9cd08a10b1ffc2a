"""How the report writes numbers: times, amounts, errors, ranges."""

import math
from collections.abc import Sequence

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def time_text(time_us: float) -> str:
    """A time in the unit that reads best, three digits: `12.5 µs`, `3.1 ms`, `2 s`."""
    for unit, factor in (("s", 1e6), ("ms", 1e3)):
        if time_us >= 0.9995 * factor:
            return f"{_digits(time_us / factor)} {unit}"
    return f"{_digits(time_us)} µs"


def amount_text(value: float, unit: str = "") -> str:
    """An amount with a decimal prefix, three digits: `134 MB`, `2.1 GFLOP`, `640`."""
    for factor, prefix in _PREFIXES:
        if value >= 0.9995 * factor:
            return f"{_digits(value / factor)} {prefix}{unit}"
    return f"{_digits(value)} {unit}".rstrip()


def percent_text(fraction: float | None, *, digits: int = 1) -> str:
    """`3.1 %`; a dash where there is no such figure."""
    if fraction is None:
        return "–"
    return f"{fraction * 100:.{digits}f} %" if math.isfinite(fraction) else "no number"


def range_text(low: float, high: float) -> str:
    """A feature's range, whole numbers exactly below 100,000: `1024–5120`, `20.9 M–134 M`; one value alone."""
    ends = [f"{value:g}" if value < 1e5 else amount_text(value) for value in (low, high)]
    return ends[0] if low == high else "–".join(ends)


def ranges_text(ranges: Sequence[tuple[float, float]]) -> str:
    """The ranges of a workload vector, in its order: `4–8 × 1024–5120 × 2048–8192`."""
    return " × ".join(range_text(low, high) for low, high in ranges)


def error_tick(ratio: float) -> str:
    """Predicted / measured as the error that it is: `+5 %`, `−20 %`; factors of 2 and more as `× 4` and `÷ 4`."""
    if max(ratio, 1 / ratio) > 1.9:
        return f"× {_digits(ratio)}" if ratio > 1 else f"÷ {_digits(1 / ratio)}"
    percent = (ratio - 1) * 100
    return "0" if ratio == 1 else f"{percent:+.2g} %".replace("-", "−")


def _digits(value: float) -> str:
    """Three digits, without zeros at the end."""
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
