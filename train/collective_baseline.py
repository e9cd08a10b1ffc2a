"""A collective's time before trees correct it: per layout, a latency and a time per entry (docs/method.md).

Layouts that were never measured are interpolated: what a ring moves over each link follows from the number of
processes, what a link then takes per entry from those layouts that were measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from kernelcast.train.dataset import Array

# Least absolute deviations by reweighting; errors below the last figure count as this large, else weights explode.
_ITERATIONS = 30
_SMALLEST_ERROR = 1e-3
# A layout with fewer rows has no spread of its own.
_FEWEST_FOR_SPREAD = 8
_SMALLEST_SPREAD = 1e-3
# Of the shortest time: keeps the logarithm defined where the fit found no latency.
_SMALLEST_LATENCY = 1e-3
# How much of a measured layout the prior of the interpolation weighs. One node and several differ by orders of
# magnitude, so the first two terms are left to the measurements: their weights only say that, where all layouts are
# of one kind, the other kind is taken to be alike.
_PRIOR_WEIGHT = 0.3
_FREE_WEIGHTS = (1e-9, 1e-6)
FADE = 2.0
"""Beyond so many times the largest entries of a layout, or below its smallest divided by it, trees add nothing."""

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
class LatencyBandwidth:
    """time = latency + work(processes) · time per entry and link · entries.

    `layouts` have figures of their own. Elsewhere log2 of latency and of time per link are linear in the terms named
    at `_LATENCY_PRIOR` and `_LINK_PRIOR`, with the coefficients `latency_log2` and `link_log2`.
    """

    collective: str
    layouts: tuple[MeasuredLayout, ...]
    latency_log2: tuple[float, ...]
    link_log2: tuple[float, ...]

    def predict_log(self, workloads: Array) -> Array:
        """Logarithm of the time in µs, [rows]."""
        entries, nodes, gpus = workloads.T
        own = self._matches(workloads)
        unknown = 1 - own.sum(axis=1)
        latency_us = own @ self._of_layouts("latency_us") + unknown * 2 ** (
            latency_terms(nodes, gpus) @ np.array(self.latency_log2)
        )
        entry_us = own @ self._of_layouts("entry_us") + unknown * ring_work(
            self.collective, nodes * gpus
        ) * 2 ** (link_terms(nodes, gpus) @ np.array(self.link_log2))
        log_us: Array = np.log(latency_us + entry_us * entries)
        return log_us

    def residual_scale(self, workloads: Array) -> Array:
        """By what trees' answers are multiplied, [rows]: the layout's spread, fading to 0 outside what was measured."""
        own = self._matches(workloads)
        entries = np.maximum(workloads[:, 0], 1.0)
        unknown = 1 - own.sum(axis=1)
        below = np.log((own @ self._of_layouts("smallest") + unknown) / entries)
        above = np.log(entries / (own @ self._of_layouts("largest") + unknown))
        outside = np.maximum(np.maximum(below, above), 0.0)
        scale: Array = own @ self._of_layouts("spread") * np.clip(1 - outside / np.log(FADE), 0.0, 1.0)
        return scale

    def _matches(self, workloads: Array) -> Array:
        """1 where a row is of a measured layout, [rows, layouts]."""
        same: npt.NDArray[np.bool_] = (workloads[:, 1:2] == self._of_layouts("nodes")) & (
            workloads[:, 2:3] == self._of_layouts("gpus_per_node")
        )
        return same.astype(np.float64)

    def _of_layouts(self, name: str) -> Array:
        return np.array([getattr(layout, name) for layout in self.layouts], dtype=np.float64)


def ring_work(collective: str, processes: Array) -> Array:
    """How often a ring sends each entry over a link (NVIDIA nccl-tests, PERFORMANCE.md: bus bandwidth).

    Entries are those of the operator table: what one process puts in.
    """
    p = np.maximum(processes, 2.0)
    if collective == "all_reduce":
        return np.asarray(2 - 2 / p)
    if collective == "all_gather":
        return np.asarray(p - 1)
    if collective in ("reduce_scatter", "all_to_all"):
        return np.asarray(1 - 1 / p)
    return np.ones_like(p)


def link_terms(nodes: Array, gpus: Array) -> Array:
    """[rows, 5]: 1, several nodes, log2 GPUs within one node, log2 GPUs of several nodes, log2 nodes."""
    several = (nodes > 1).astype(np.float64)
    log_gpus = np.log2(np.maximum(gpus, 1.0))
    log_nodes = np.log2(np.maximum(nodes, 1.0))
    return np.column_stack(
        [np.ones_like(several), several, (1 - several) * log_gpus, several * log_gpus, log_nodes]
    )


def latency_terms(nodes: Array, gpus: Array) -> Array:
    """[rows, 3]: 1, several nodes, log2 processes."""
    several = (nodes > 1).astype(np.float64)
    return np.column_stack([np.ones_like(several), several, np.log2(np.maximum(nodes * gpus, 1.0))])


def fit_latency_bandwidth(collective: str, workloads: Array, times_us: Array) -> LatencyBandwidth:
    """Fit each layout by least absolute log error, which follows the bulk of the rows, and what lies between them."""
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
    work = ring_work(collective, nodes * gpus)
    link_us = np.array([layout.entry_us for layout in layouts]) / work
    latency_us = np.array([layout.latency_us for layout in layouts])
    return LatencyBandwidth(
        collective=collective,
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
        # Squares so weighted have the slope of |log(ratio)| at this point: the same for near and far rows.
        weights = 1 / np.sqrt(ratio * np.maximum(np.abs(ratio - 1), _SMALLEST_ERROR))
    shortest = float(times_us.min())
    return (
        max(float(latency_us), _SMALLEST_LATENCY * shortest),
        # Rows of one size leave it open which of the two it is.
        max(float(entry_us), _SMALLEST_LATENCY * shortest / float(largest[1])),
    )


def _spread(off: Array) -> float:
    """Standard deviation of normally distributed values, from the median of their distances to the median."""
    return max(1.4826 * float(np.median(np.abs(off - np.median(off)))), _SMALLEST_SPREAD)


def _smooth(terms: Array, values: Array, prior: Sequence[float]) -> tuple[float, ...]:
    """Coefficients of least squares, drawn to the prior's where the layouts leave them open."""
    start = np.array(prior)
    weight = np.full(len(start), _PRIOR_WEIGHT)
    weight[: len(_FREE_WEIGHTS)] = _FREE_WEIGHTS
    left = values - terms @ start
    correction = np.linalg.solve(terms.T @ terms + np.diag(weight), terms.T @ left)
    return tuple(map(float, start + correction))
