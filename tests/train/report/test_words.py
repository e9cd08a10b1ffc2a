"""How the report writes numbers."""

import pytest

from kernelcast.train.report.words import (
    amount_text,
    error_tick,
    percent_text,
    range_text,
    ranges_text,
    time_text,
)


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0.5, "0.5 µs"),
        (12.345, "12.3 µs"),
        (999.4, "999 µs"),
        (999.6, "1 ms"),
        (2e6, "2 s"),
        (3.6e9, "3600 s"),
    ],
)
def test_times(time_us: float, text: str) -> None:
    assert time_text(time_us) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (640, "", "640"),
        (999.9, "B", "1 kB"),
        (134_217_728, "B", "134 MB"),
        (2.1e9, "FLOP", "2.1 GFLOP"),
        (0, "B", "0 B"),
        (1.25e16, "FLOP", "12.5 PFLOP"),
    ],
)
def test_amounts(value: float, unit: str, text: str) -> None:
    assert amount_text(value, unit) == text


def test_fractions() -> None:
    assert percent_text(0.0312) == "3.1 %"
    assert percent_text(0.9, digits=0) == "90 %"
    assert percent_text(None) == "–"
    assert percent_text(float("inf")) == "no number"


def test_ranges() -> None:
    assert range_text(4, 8) == "4–8"
    assert range_text(16, 16) == "16"
    assert range_text(99_999, 134_217_728) == "99999–134 M"
    assert ranges_text([(4, 8), (1024, 5120), (7, 7)]) == "4–8 × 1024–5120 × 7"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.0, "0"),
        (1.05, "+5 %"),
        (0.8, "−20 %"),
        (1 / 1.5, "−33 %"),
        (1.001, "+0.1 %"),
        (2, "× 2"),
        (0.1, "÷ 10"),
    ],
)
def test_errors_on_an_axis(ratio: float, text: str) -> None:
    assert error_tick(ratio) == text
