"""Times as people and schedulers write them, and back: `90`, `1h30m`, `01:30:00`, `1-12:00:00`."""

import math
import re

from kernelcast.runtime.errors import DataError

_DAY_S = 86_400
_UNITS_S = {"d": _DAY_S, "h": 3_600, "m": 60, "s": 1}
_WITH_UNITS = re.compile(
    r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.A
)
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.A)
_LONGEST_TEXT = 40

MAX_SLURM_S = 24_855 * _DAY_S
"""Slurm 22.05 reads a time limit as 32-bit seconds: what is longer than 24,855 days it takes for something else."""


def read_duration(text: str) -> float | None:
    """Seconds, or None if `text` is not a duration.

    A bare number is seconds; units are `1d`, `2h`, `3m`, `4s` and their sums in this order (`1h30m`); with a
    colon or a dash it is what Slurm reads: `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`.
    """
    if not text or len(text) > _LONGEST_TEXT:
        return None
    if ":" in text or "-" in text:
        return _read_clock(text)
    match = _WITH_UNITS.fullmatch(text)
    if match is None:
        return None
    return sum(
        float(part) * unit for part, unit in zip(match.groups(), _UNITS_S.values(), strict=True) if part
    )


def read_time_limit(text: str) -> float | None:
    """Seconds of a job's present time limit: from a second to Slurm's longest, or None."""
    limit_s = read_duration(text)
    return limit_s if limit_s is not None and 1 <= limit_s <= MAX_SLURM_S else None


def _read_clock(text: str) -> float | None:
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, *numbers = match.groups()
    given = [int(number) for number in numbers if number is not None]
    if days is not None:
        hours, minutes, seconds = [*given, 0, 0][:3]
    elif len(given) == 2:
        hours, (minutes, seconds) = 0, given
    else:
        hours, minutes, seconds = given
    return float(int(days or 0) * _DAY_S + hours * 3_600 + minutes * 60 + seconds)


def whole_seconds(time_s: float) -> int:
    """The next full second, so that no time is shown too short."""
    return math.ceil(round(time_s, 6))


def format_time(time_s: float) -> str:
    """`HH:MM:SS`, or `D-HH:MM:SS` from one day; rounded up to a full second."""
    days, seconds = divmod(whole_seconds(time_s), _DAY_S)
    clock = f"{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{days}-{clock}" if days else clock


def format_slurm(time_s: float) -> str:
    """A time limit for Slurm, in minutes: rounded up, at least one; DataError above Slurm's longest."""
    if not fits_slurm(time_s):
        raise DataError(
            f"walltime is {time_s / _DAY_S:,.0f} days, expected at most {MAX_SLURM_S // _DAY_S:,}, Slurm's longest"
        )
    return format_time(_slurm_s(time_s))


def fits_slurm(time_s: float) -> bool:
    return _slurm_s(time_s) <= MAX_SLURM_S


def _slurm_s(time_s: float) -> int:
    return 60 * max(1, math.ceil(round(time_s, 6) / 60))
