"""Clocks against each other, by hand: an offset, and a drift where enough instants show one."""

import numpy as np
import pytest

from kernelcast.collector.ingest.matching import _line

TIMES_NS = np.arange(10) * 1e9


@pytest.mark.parametrize(
    ("times_ns", "ahead_ns", "expected"),
    [
        (TIMES_NS, 5e3 + 2e-6 * TIMES_NS, (5e3, 2e-6, 0.0)),
        (TIMES_NS[:9], 5e3 + 2e-6 * TIMES_NS[:9], (13e3, 0.0, 1.4826 * 4e3)),  # too few for a drift
        (TIMES_NS, np.full(10, 7.0), (7.0, 0.0, 0.0)),
        (np.zeros(10), np.arange(10.0), (4.5, 0.0, 1.4826 * 2.5)),  # all at once
        # An instant far off changes neither.
        (TIMES_NS, np.where(TIMES_NS == 3e9, 1e9, 5e3 + 2e-6 * TIMES_NS), (5e3, 2e-6, 0.0)),
    ],
)
def test_a_clock_beside_another(
    times_ns: np.ndarray, ahead_ns: np.ndarray, expected: tuple[float, float, float]
) -> None:
    assert tuple(_line(np.column_stack([times_ns, ahead_ns]))) == pytest.approx(expected, rel=1e-9, abs=1e-6)
