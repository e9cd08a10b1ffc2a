"""Durations: read as people and Slurm write them, written so that Slurm reads the same."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import DataError
from kernelcast.walltime import format_slurm, format_time, read_duration
from kernelcast.walltime.durations import MAX_SLURM_S


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0", 0),
        ("1.5", 1.5),
        ("90s", 90),
        ("5m", 300),
        ("1.5h", 5_400),
        ("1h30m", 5_400),
        ("2d1h1m1s", 176_461),
        ("02:03", 123),
        ("01:02:03", 3_723),
        ("100:00:00", 360_000),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        ("1-12:30:15", 131_415),
    ],
)
def test_reads(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "1x",
        "m",
        "30m1h",
        "-5",
        "1:",
        ":1",
        "1-",
        "1-2-3",
        "1:2:3:4",
        "1 h",
        "１",
        "1e9",
        "9" * 50,
        "1-1:1:1:1",
    ],
)
def test_refuses(text: str) -> None:
    assert read_duration(text) is None


@given(st.integers(0, 10**9))
def test_what_is_written_is_read_again(seconds: int) -> None:
    assert read_duration(format_time(seconds)) == seconds


@given(st.floats(0, MAX_SLURM_S))
def test_slurm_gets_the_next_full_minute(seconds: float) -> None:
    limit = read_duration(format_slurm(seconds))
    assert limit is not None
    assert limit % 60 == 0
    assert limit >= 60
    assert seconds - 1e-6 <= limit < max(seconds + 60, 61)


def test_slurm_form() -> None:
    assert format_slurm(0.1) == "00:01:00"
    assert format_slurm(60) == "00:01:00"
    assert format_slurm(60.01) == "00:02:00"
    assert format_slurm(86_400) == "1-00:00:00"
    assert format_slurm(86_399) == "1-00:00:00"


@pytest.mark.parametrize("seconds", [MAX_SLURM_S + 1, 1e15])
def test_what_slurm_cannot_be_told_is_refused(seconds: float) -> None:
    with pytest.raises(DataError, match=r"walltime is [\d,]+ days, expected at most 24,855, Slurm's longest"):
        format_slurm(seconds)
    assert math.isfinite(read_duration(format_time(seconds)) or math.nan)
