"""Where an axis has its ticks: few, round numbers, labelled in full."""

import math
from collections.abc import Sequence

# Mantissas from coarse to fine: whole powers of ten first.
_MANTISSAS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))
# Errors as ratios: percent near 1, factors beyond.
_RATIOS = (1.001, 1.002, 1.005, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0, 10.0, 30.0, 100.0, 1000.0, 1e4)


def log_ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Round numbers from `low` to `high` (both above 0) on a logarithmic axis: 2 to `most` where it is possible."""
    for mantissas in _MANTISSAS:
        found = _between(low, high, mantissas)
        if len(found) >= 3:
            return found[:: math.ceil(len(found) / most)]
    return found if len(found) >= 2 else _linear(low, high)


def ratio_ticks(largest: float) -> list[float]:
    """Ratios around 1, mirrored on a logarithmic axis, out to `largest` (above 1): the two furthest round ones."""
    outer = max((ratio for ratio in _RATIOS if ratio <= largest), default=_RATIOS[0])
    # The inner one neither touches the outer one nor the 0 between both sides.
    spaced = [r for r in _RATIOS if 0.2 * math.log(largest) < math.log(r) < 0.6 * math.log(outer)]
    return sorted({1.0, *(tick for ratio in (outer, *spaced[-1:]) for tick in (ratio, _mirrored(ratio)))})


def _mirrored(ratio: float) -> float:
    # Below 1.5, percent are told in percent: −10 %, not the −9.09 % of the mirrored factor.
    return 2 - ratio if ratio < 1.4 else 1 / ratio


def _between(low: float, high: float, mantissas: Sequence[float]) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [mantissa * 10.0**decade for decade in decades for mantissa in mantissas]
    return [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def _linear(low: float, high: float) -> list[float]:
    """Round numbers of equal distance, for a range too narrow for powers of ten."""
    rough = (high - low) / 3
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(step for factor in (1, 2, 5, 10) if (step := factor * magnitude) >= rough)
    first = math.ceil(low / step)
    return [n * step for n in range(first, math.floor(high / step) + 1)]
