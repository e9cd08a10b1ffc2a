"""A description corrected by measured rows, and measured rows extended by it to layouts that were never measured.

Rows of groups inside a node correct the links, rows of one process per node correct the cards: two factors each, of
latencies and of times per byte. What then still differs at the measured layouts is carried to the nearest of a kind.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernelcast.runtime.dataclass import dataclass, field
from kernelcast.runtime.hardware.collectives import (
    UNCORRECTED,
    Correction,
    LevelScale,
    Setting,
    Times,
    collective_us,
    least_us,
    protocol_us,
    terms_of,
    whole_bytes,
)
from kernelcast.runtime.hardware.fabric import Fabric

Layout = tuple[int, int]
"""Nodes, devices per node."""

_FACTORS = np.geomspace(1 / 64, 64, 13)
"""Factors tried first; around the best one these to the power of 1 over `_FINER` are tried then."""
_FINER = (6.0, 36.0, 216.0)
_PULL = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRows:
    """Rows of one operator in one layout, measured alone: `message_bytes` rising, `time_us` of each."""

    nodes: int
    gpus_per_node: int
    message_bytes: NDArray[np.float64]
    time_us: NDArray[np.float64]

    @property
    def layout(self) -> Layout:
        """Nodes, devices per node."""
        return self.nodes, self.gpus_per_node


def rows_by_layout(rows: Iterable[tuple[int, int, float, float]]) -> tuple[MeasuredRows, ...]:
    """Rows of (nodes, devices per node, bytes, time in µs) sorted by layout and size; equal sizes by their median."""
    found: dict[Layout, dict[float, list[float]]] = {}
    for nodes, gpus, size, time_us in rows:
        found.setdefault((nodes, gpus), {}).setdefault(size, []).append(time_us)
    return tuple(
        MeasuredRows(
            nodes=nodes,
            gpus_per_node=gpus,
            message_bytes=np.array(sorted(sizes), dtype=np.float64),
            time_us=np.array([np.median(sizes[size]) for size in sorted(sizes)]),
        )
        for (nodes, gpus), sizes in sorted(found.items())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedFabric:
    """A description and what measured rows of one operator say about it, for any layout that it allows."""

    fabric: Fabric
    operator: str
    rows: tuple[MeasuredRows, ...] = ()
    correction: Correction = UNCORRECTED
    _residuals: Mapping[Layout, Times] = field(default_factory=dict, repr=False)

    def nearest(self, nodes: int, gpus_per_node: int) -> MeasuredRows | None:
        """The measured layout of the same kind (inside a node, one process per node, or both) that is nearest."""
        alike = [rows for rows in self.rows if _kind(*rows.layout) == _kind(nodes, gpus_per_node)]
        return min(
            alike,
            key=lambda rows: (
                abs(math.log2(rows.nodes / nodes)) + abs(math.log2(rows.gpus_per_node / gpus_per_node))
            ),
            default=None,
        )

    def is_corrected(self, setting: Setting) -> bool:
        """Whether rows say what each level that a group uses reaches."""
        if self.nearest(setting.nodes, setting.gpus_per_node) is not None:
            return True
        kinds = {_kind(*one.layout) for one in self.rows}
        inside = setting.inside is None or (False, True) in kinds
        return inside and (setting.between is None or (True, False) in kinds)

    def time_us(self, message_bytes: ArrayLike, setting: Setting, *, quality: float | Times = 0.0) -> Times:
        """Time in µs, float64 like `message_bytes`; see `collective_us`."""
        size = np.asarray(message_bytes, dtype=np.float64)
        found = collective_us(self.operator, size, setting, correction=self.correction, quality=quality)
        nearest = self.nearest(setting.nodes, setting.gpus_per_node)
        if nearest is None:
            return found
        # At the same whole message: an all-gather counts shards.
        whole = whole_bytes(self.operator, size, setting.processes)
        known = whole_bytes(self.operator, nearest.message_bytes, nearest.nodes * nearest.gpus_per_node)
        residual = np.interp(np.log(np.maximum(whole, 1.0)), np.log(known), self._residuals[nearest.layout])
        return np.maximum(found * np.exp(residual), least_us(self.operator, size, setting))


def corrected(fabric: Fabric, operator: str, rows: Sequence[MeasuredRows]) -> CorrectedFabric:
    """Correct `fabric` by measured rows of `operator`; layouts that it does not allow are left out."""
    used = tuple(one for one in rows if _is_allowed(fabric, one))
    correction = Correction(
        inside=_fitted(fabric, operator, [one for one in used if one.nodes == 1]),
        between=_fitted(fabric, operator, [one for one in used if one.gpus_per_node == 1]),
    )
    residuals = {
        one.layout: np.log(
            one.time_us / collective_us(operator, one.message_bytes, _of(fabric, one), correction=correction)
        )
        for one in used
    }
    return CorrectedFabric(
        fabric=fabric, operator=operator, rows=used, correction=correction, _residuals=residuals
    )


def _fitted(fabric: Fabric, operator: str, rows: Sequence[MeasuredRows]) -> LevelScale:
    """The two factors with the least mean absolute logarithmic error, layouts equally weighted."""
    if not rows:
        return LevelScale()
    latency, per_byte, around = 1.0, 1.0, _FACTORS
    for finer in _FINER:
        # A little pull to the description decides what the rows leave open.
        tried_latency, tried_per_byte = np.meshgrid(latency * around, per_byte * around)
        errors = _PULL * (np.abs(np.log(tried_latency)) + np.abs(np.log(tried_per_byte)))
        for one in rows:
            errors += _errors(fabric, operator, one, tried_latency, tried_per_byte) / len(rows)
        best = int(np.argmin(errors))
        latency, per_byte = float(tried_latency.flat[best]), float(tried_per_byte.flat[best])
        around = _FACTORS ** (1 / finer)
    return LevelScale(latency=latency, per_byte=per_byte)


def _errors(fabric: Fabric, operator: str, rows: MeasuredRows, latency: Times, per_byte: Times) -> Times:
    """Mean absolute logarithmic error of a layout within one level, of every pair of factors."""
    setting = _of(fabric, rows)
    fastest = np.full((*latency.shape, len(rows.time_us)), np.inf)
    for one in terms_of(operator, rows.message_bytes, setting):
        steps_us = latency[..., None] * (one.inside_steps_us + one.between_steps_us)
        startup_us = latency[..., None] * (one.inside_startup_us + one.between_startup_us)
        moving_us = per_byte[..., None] * (one.inside_us + one.between_us)
        times_us = protocol_us(one, steps_us=steps_us, startup_us=startup_us, moving_us=moving_us)
        fastest = np.minimum(fastest, times_us)
    mean: Times = np.abs(np.log(fastest / rows.time_us)).mean(axis=-1)
    return mean


def _of(fabric: Fabric, rows: MeasuredRows) -> Setting:
    return Setting(fabric=fabric, nodes=rows.nodes, gpus_per_node=rows.gpus_per_node)


def _is_allowed(fabric: Fabric, rows: MeasuredRows) -> bool:
    fits = rows.gpus_per_node <= fabric.devices_per_node and rows.nodes * rows.gpus_per_node > 1
    return fits and (rows.nodes == 1 or fabric.between is not None)


def _kind(nodes: int, gpus_per_node: int) -> tuple[bool, bool]:
    return nodes > 1, gpus_per_node > 1
