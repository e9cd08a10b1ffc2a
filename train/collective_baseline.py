"""A collective's time before trees correct it: per layout, a latency and a time per entry (docs/method.md).

Unmeasured layouts are interpolated: the number of processes gives the traffic of a ring on each link, the measured
layouts give the time per entry on a link.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from kernelcast.runtime.operators import Operator
from kernelcast.train.dataset import Array
from kernelcast.train.formula import Baseline, Column, weighted_sum

# Least absolute deviations by reweighting; errors below the last figure count as this large, else weights explode.
_ITERATIONS = 30
_SMALLEST_ERROR = 1e-3
# A layout with fewer rows has no spread of its own.
_FEWEST_FOR_SPREAD = 8
_SMALLEST_SPREAD = 1e-3
# Of the shortest time: keeps the logarithm defined where the fit found no latency.
_SMALLEST_LATENCY = 1e-3
# Weight of the interpolation's prior, relative to one measured layout. One node and several differ by orders of
# magnitude, so the first two terms are left to the measurements: their tiny weights only make the unmeasured kind equal
# to the measured one where all layouts are of one kind.
_PRIOR_WEIGHT = 0.3
_FREE_WEIGHTS = (1e-9, 1e-6)
FADE = 2.0
"""Trees add nothing beyond the largest entries of a layout times this factor, or below its smallest divided by it."""

# log2(time per entry on a link) = these · [1, several nodes, log2 GPUs (one node), log2 GPUs (several), log2 nodes].
# Several nodes: each GPU brings a network card's worth of bandwidth, and a ring over more nodes is no slower per link.
_LINK_PRIOR = (0.0, 0.0, 0.0, -1.0, 0.0)
# log2(latency) = these · [1, several nodes, log2 processes].
_LATENCY_PRIOR = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayout:
    """One layout: `latency_us` + `entry_us` · entries, measured from `smallest` to `largest` entries.

    `spread` is the robust standard deviation of log(measured / baseline).
    """

    nodes: int
    gpus_per_node: int
    latency_us: float
    entry_us: float
    smallest: float
    largest: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyBandwidth(Baseline):
    """time = latency + ring passes(processes) · time per entry and link · entries.

    `layouts` have figures of their own. Elsewhere log2 of latency and of time per link are linear in the terms named
    at `_LATENCY_PRIOR` and `_LINK_PRIOR`, with the coefficients `latency_log2` and `link_log2`. `ring_passes` are the
    operator's.
    """

    ring_passes: tuple[float, float, float]
    layouts: tuple[MeasuredLayout, ...]
    latency_log2: tuple[float, ...]
    link_log2: tuple[float, ...]

    def log_us(self, workloads: Array) -> Column:
        entries, nodes, gpus = (workloads[:, [feature]] for feature in range(3))
        link_us = _power_of_two(self.link_log2, link_terms(nodes, gpus))
        entry_us = link_us * passes(self.ring_passes, nodes * gpus)
        latency_us = _power_of_two(self.latency_log2, latency_terms(nodes, gpus))
        latency_us = self._own_or(workloads, "latency_us", latency_us)
        return np.log(latency_us + self._own_or(workloads, "entry_us", entry_us) * entries)

    def residual_scale(self, workloads: Array) -> Column:
        """The factor of the trees' answers, [rows, 1]: the layout's spread, fading to 0 outside its sizes."""
        entries = np.maximum(workloads[:, [0]], 1.0)
        below = np.log(self._own_or(workloads, "smallest", 1.0) / entries)
        above = np.log(entries / self._own_or(workloads, "largest", 1.0))
        outside = np.maximum(np.maximum(below, above), 0.0)
        return self._own_or(workloads, "spread", 0.0) * np.maximum(1.0 - outside * (1 / np.log(FADE)), 0.0)

    def _own_or(self, workloads: Array, name: str, otherwise: Column) -> Column:
        """The figure `name` of a row's layout; `otherwise` in layouts that were not measured. [rows, 1]."""
        nodes, gpus, values = (
            np.array([[getattr(layout, figure) for layout in self.layouts]], dtype=np.float64)
            for figure in ("nodes", "gpus_per_node", name)
        )
        matches = 1.0 * (workloads[:, [1]] == nodes) * (workloads[:, [2]] == gpus)
        return matches @ values.T + (1.0 - matches @ np.ones_like(values.T)) * otherwise


def passes(ring_passes: tuple[float, float, float], processes: Column) -> Column:
    """How often a ring of `processes` sends each entry over a link; see `Operator.ring_passes`."""
    p = np.maximum(processes, 2.0)
    constant, linear, inverse = ring_passes
    return constant + linear * p + inverse / p


def link_terms(nodes: Column, gpus: Column) -> Sequence[Column]:
    """1, several nodes, log2 GPUs within one node, log2 GPUs of several nodes, log2 nodes."""
    several, log_gpus = 1.0 * (nodes > 1.0), _log2(gpus)
    return 1.0, several, (1.0 - several) * log_gpus, several * log_gpus, _log2(nodes)


def latency_terms(nodes: Column, gpus: Column) -> Sequence[Column]:
    """1, several nodes, log2 processes."""
    return 1.0, 1.0 * (nodes > 1.0), _log2(nodes * gpus)


def _log2(column: Column) -> Column:
    return np.log(np.maximum(column, 1.0)) * (1 / np.log(2))


def _power_of_two(coefficients: Sequence[float], terms: Sequence[Column]) -> Column:
    """2 to the power of the sum of coefficient · term."""
    return np.exp(weighted_sum(zip(coefficients, terms, strict=True)) * np.log(2))


def fit_latency_bandwidth(op: Operator, workloads: Array, times_us: Array) -> LatencyBandwidth:
    """Fit each layout by least absolute log error, which is robust to outliers, and the layouts between them."""
    found = sorted(set(map(tuple, workloads[:, 1:].tolist())))
    rows = [(workloads[:, 1:] == layout).all(axis=1) for layout in found]
    lines = [_line(workloads[own, 0], times_us[own]) for own in rows]
    off = [
        np.log(times_us[own] / (latency + entry * workloads[own, 0]))
        for own, (latency, entry) in zip(rows, lines, strict=True)
    ]
    spreads = [_spread(errors) for errors in off]
    shared = _spread(np.concatenate(off))
    layouts = tuple(
        MeasuredLayout(
            nodes=int(nodes),
            gpus_per_node=int(gpus),
            latency_us=latency,
            entry_us=entry,
            smallest=max(float(workloads[own, 0].min()), 1.0),
            largest=max(float(workloads[own, 0].max()), 1.0),
            spread=spread if own.sum() >= _FEWEST_FOR_SPREAD else shared,
        )
        for (nodes, gpus), own, (latency, entry), spread in zip(found, rows, lines, spreads, strict=True)
    )
    nodes, gpus = np.array(found).T
    assert op.ring_passes is not None  # of every collective
    link_us = np.array([layout.entry_us for layout in layouts]) / passes(op.ring_passes, nodes * gpus)
    latency_us = np.array([layout.latency_us for layout in layouts])
    return LatencyBandwidth(
        ring_passes=op.ring_passes,
        layouts=layouts,
        latency_log2=_smooth(latency_terms(nodes, gpus), np.log2(latency_us), _LATENCY_PRIOR),
        link_log2=_smooth(link_terms(nodes, gpus), np.log2(link_us), _LINK_PRIOR),
    )


def _line(entries: Array, times_us: Array) -> tuple[float, float]:
    """Latency and time per entry, both above 0, with the smallest mean |log(predicted / measured)|."""
    columns = np.column_stack([np.ones_like(entries), entries])
    largest = np.maximum(columns.max(axis=0), 1.0)
    weights = np.ones_like(times_us)
    latency_us = entry_us = 0.0
    for _ in range(_ITERATIONS):
        (scaled_latency, scaled_entry), _ = nnls(columns / largest * (weights / times_us)[:, None], weights)
        latency_us, entry_us = scaled_latency / largest[0], scaled_entry / largest[1]
        predicted_us = latency_us + entry_us * entries
        ratio = np.maximum(predicted_us / times_us, 1e-6)
        # With these weights the squares have the slope of |log(ratio)|, which does not grow with the error.
        weights = 1 / np.sqrt(ratio * np.maximum(np.abs(ratio - 1), _SMALLEST_ERROR))
    shortest = float(times_us.min())
    return (
        max(float(latency_us), _SMALLEST_LATENCY * shortest),
        # Rows of a single size do not determine both.
        max(float(entry_us), _SMALLEST_LATENCY * shortest / float(largest[1])),
    )


def _spread(off: Array) -> float:
    """Standard deviation of normally distributed values, from the median of their distances to the median."""
    return max(1.4826 * float(np.median(np.abs(off - np.median(off)))), _SMALLEST_SPREAD)


def _smooth(columns: Sequence[Column], values: Array, prior: Sequence[float]) -> tuple[float, ...]:
    """Least-squares coefficients, shrunk towards the prior's, which decide what the layouts do not determine."""
    terms = np.column_stack(np.broadcast_arrays(*columns, values)[:-1])
    start = np.array(prior)
    weight = np.full(len(start), _PRIOR_WEIGHT)
    weight[: len(_FREE_WEIGHTS)] = _FREE_WEIGHTS
    left = values - terms @ start
    correction = np.linalg.solve(terms.T @ terms + np.diag(weight), terms.T @ left)
    return tuple(map(float, start + correction))
