"""How numbers, times and sizes are written for readers."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from kernelcast.runtime.bundle.manifest import UNKNOWN_MOMENT
from kernelcast.runtime.errors import shown_size

_PREFIXES = (
    (1e15, "P"),
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1.0, ""),
    (1e-3, "m"),
    (1e-6, "µ"),
)


def seconds(value_s: float, *, like: float | None = None) -> str:
    """A time in the unit that reads best (or that of `like`), with four digits: `1.234 s`, `5.600 µs`, `2.000 days`."""
    value = value_s if like is None else like
    scale_s, unit = next(
        ((scale_s, name) for least_s, scale_s, name in _TIME_UNITS if value >= least_s), (1e-6, "µs")
    )
    return f"{_four_digits(value_s / scale_s)} {unit}"


def between(low_s: float, high_s: float, *, like: float | None = None) -> str:
    """Two times in the unit of `like`, or of the first: `5.425 to 8.156 s`."""
    like = low_s if like is None else like
    return f"{seconds(low_s, like=like).split()[0]} to {seconds(high_s, like=like)}"


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Sizes with their names: `1.5 GiB reserved, 0.8 GiB NCCL`."""
    return ", ".join(f"{gibibytes(size)} {name}" for name, size in sizes.items())


def in_days(days: float, *, like: float | None = None) -> str:
    """A time of days on the calendar: `1,234.5 days`; below two in the unit that reads best, `3.500 h`."""
    if (days if like is None else like) >= 2:
        return f"{days:,.1f} days" if days >= 10 else f"{three_digits(days)} days"
    return seconds(days * _S_PER_DAY, like=None if like is None else like * _S_PER_DAY)


_S_PER_DAY = 86_400.0
_TIME_UNITS = (
    (2 * _S_PER_DAY, _S_PER_DAY, "days"),
    (2 * 3_600.0, 3_600.0, "h"),
    (120.0, 60.0, "min"),
    (1.0, 1.0, "s"),
    (1e-3, 1e-3, "ms"),
)
"""From how many seconds on a unit reads best, its seconds, its name; two hours are the first that are not minutes."""


gibibytes = shown_size


def amount(value: float, unit: str = "") -> str:
    """An amount with a decimal prefix and up to three digits: `134 MB`, `2.1 GFLOP`, `12.5 µs`, `640`."""
    factor, prefix = next((pair for pair in _PREFIXES if value >= 0.9995 * pair[0]), _PREFIXES[-1])
    if value == 0:
        factor, prefix = 1.0, ""
    return f"{three_digits(value / factor)} {prefix}{unit}".rstrip()


def three_digits(value: float) -> str:
    """Three digits, without trailing zeros."""
    decimals = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def rate(per_s: float) -> str:
    """A number per second: `1,234`, slow ones with three digits, `0.0426`."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def percent(fraction: float | None, *, digits: int = 1) -> str:
    """`3.1 %`; a dash for None, `no number` if not finite."""
    if fraction is None:
        return "–"
    return f"{fraction * 100:.{digits}f} %" if math.isfinite(fraction) else "no number"


def counted(count: int, what: str) -> str:
    """`1 stage`, `2 stages`."""
    plural = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{count:,} {what if count == 1 else plural}"


def shortened(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def shortened_apart(names: Sequence[str], most: int) -> list[str]:
    """Names cut to `most` characters, different ones to different texts: with the part where they differ."""
    found = {name: shortened(name, most) for name in names}
    alike: dict[str, list[str]] = {}
    for name, short in found.items():
        alike.setdefault(short, []).append(name)
    for group in (sorted(names) for names in alike.values() if len(names) > 1):
        ends = zip_longest(group[0], group[-1])  # of sorted names, the first and the last differ earliest
        common = max(next(place for place, (one, two) in enumerate(ends) if one != two) - 4, 0)
        cut = [f"{name[: most // 3]}…{shortened(name[common:], most - most // 3 - 5)}" for name in group]
        for number, (name, short) in enumerate(zip(group, cut, strict=True), start=1):
            found[name] = short if cut.count(short) == 1 else f"{short} #{number}"
    return [found[name] for name in names]


def value_range(low: float, high: float) -> str:
    """A range of whole numbers, exact below 100,000: `1024–5120`, `20.9 M–134 M`; one value alone."""
    ends = [f"{value:g}" if value < 1e5 else amount(value) for value in (low, high)]
    return ends[0] if low == high else "–".join(ends)


def value_ranges(ranges: Iterable[tuple[float, float]]) -> str:
    """The ranges of a workload vector, in its order: `4–8 × 1024–5120 × 2048–8192`."""
    return " × ".join(value_range(low, high) for low, high in ranges)


def measured(created_at: str) -> str:
    """When the newest measurement of a bundle was made."""
    return (
        "date of measurement not recorded" if created_at == UNKNOWN_MOMENT else f"measured until {created_at}"
    )


_UNITS: Mapping[str, Callable[[Any], str]] = {
    "_percent": lambda value: percent(None if value is None else value / 100),
    "_ratio": lambda value: f"{value:.2f} ×",
    "_memory_bytes": gibibytes,
    "_bytes": lambda value: amount(value, "B"),
    "_time_s": seconds,
}


_SYMBOLS = {"gb per s": "GB/s", "teraflops per s": "TFLOP/s", "percent": "%", "us": "µs"}
_SYMBOL = re.compile(rf"\b({'|'.join(_SYMBOLS)})\b")


def in_words(column: str) -> str:
    """The name of a column with the signs of its units: `bus_gb_per_s` is `bus GB/s`, `percent_of_peak` `% of peak`."""
    return _SYMBOL.sub(lambda found: _SYMBOLS[found[0]], column.replace("_", " "))


def heading(column: str) -> str:
    """The heading of a column of values: its name without the unit, `mean_spread_percent` is `mean spread`."""
    unit = next((unit for unit in _UNITS if column.endswith(unit)), "")
    return in_words(column.removesuffix("_s" if unit == "_time_s" else unit))


def cell_text(column: str, value: Any) -> str:
    """A value as the cell of a table, in the unit at the end of its column's name; None is empty, or a dash."""
    for unit, text in _UNITS.items():
        if column.endswith(unit) and (value is not None or unit == "_percent"):
            return text(value)
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,}"


def table_texts(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    return [heading(name) for name in rows[0]], [
        [cell_text(name, value) for name, value in row.items()] for row in rows
    ]


def round_step(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten: the distance of an axis's ticks."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def _four_digits(value: float) -> str:
    if value <= 0:
        return "0"
    decimals = max(0, 3 - math.floor(math.log10(value)))
    return f"{value:,.{min(decimals, 3)}f}"
