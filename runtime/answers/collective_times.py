"""Times of collectives where a fabric is known: measured rows, extended by a description, or the description alone."""

import math
import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.answers.fabric_choice import FabricBundle, FabricChoice, FabricUse
from kernelcast.runtime.answers.predictor import Answer, Predictor
from kernelcast.runtime.answers.sources import source_of
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.bundle.manifest import described_fabrics, measured_fabrics
from kernelcast.runtime.bundle.regressor_entry import Layout, RegressorEntry
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.hardware.collectives import Setting, least_us
from kernelcast.runtime.hardware.correction import CorrectedFabric, MeasuredRows, corrected
from kernelcast.runtime.hardware.devices import ELEMENT_BYTES
from kernelcast.runtime.hardware.fabric import Fabric
from kernelcast.runtime.operators import OPERATORS, Key

_QUALITIES = np.array([[0.0], [1.0], [-1.0]])
"""A usual fabric, the best and the worst one (`collective_us`)."""
_SIZES = 12
"""Sizes at which measured layouts are looked at, from the smallest to the largest trained entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Factors of a time's interval beyond that of its efficiencies: what the law itself leaves open."""

    low: float
    high: float


# Errors on rows that had no part (docs/fabrics.md): nodes and cards alone within 20 %, both together up to 60 % short
# where a message is small for its ring.
EXTENDED_SPREAD = Spread(low=1.2, high=1.2)
ONE_LEVEL_SPREAD = Spread(low=1.2, high=1.3)
TWO_LEVEL_SPREAD = Spread(low=1.2, high=2.0)


class CollectiveSource:
    """Answers collectives over one fabric; safe to use from several threads. `predictor` has regressors of measured
    layouts, `fabric` is a description, one may be None. `is_asked`: the question named another fabric than the
    bundle's.
    """

    def __init__(
        self, *, predictor: Predictor | None, fabric: Fabric | None, is_asked: bool, dtype: str
    ) -> None:
        self.predictor, self.fabric, self.is_asked = predictor, fabric, is_asked
        self.element_bytes = _element_bytes(dtype)
        self._lock = threading.Lock()
        self._corrected: dict[Key, CorrectedFabric] = {}

    @property
    def name(self) -> str:
        """What answers and errors call it."""
        if self.fabric is not None:
            return self.fabric.name
        return "" if self.predictor is None else str(self.predictor.bundle.path)

    @property
    def devices_per_node(self) -> tuple[int, ...]:
        """Sizes of its nodes, as far as they are known."""
        if self.fabric is not None:
            return (self.fabric.devices_per_node,)
        known = [] if self.predictor is None else self.predictor.bundle.manifest.fabric
        return tuple(sorted({one.gpus_per_node for one in known}))

    @property
    def use(self) -> FabricUse:
        """What an answer's provenance says about it."""
        bundle = None if self.predictor is None else self.predictor.bundle
        if bundle is not None and not any(OPERATORS[name].is_collective for name, _ in bundle.entries):
            bundle = None
        fabric = self.fabric
        measured = "" if bundle is None else "; ".join(one.description for one in bundle.manifest.fabric)
        return FabricUse(
            name=self.name,
            kind="described" if bundle is None else "measured",
            description=fabric.description if fabric is not None else measured,
            digest="" if bundle is None else bundle.digest,
            source="" if fabric is None else fabric.source,
        )

    def entry_of(self, key: Key) -> RegressorEntry | None:
        """The settings that the regressor of `key` was measured in; None without a regressor."""
        entries = {} if self.predictor is None else self.predictor.bundle.entries
        source = source_of(key, entries)
        return None if source is None else entries[source.answered_by]

    def is_measured(self, key: Key, layout: Layout) -> bool:
        """Whether a regressor answers a layout: one that it was measured in, or that no description knows better."""
        entry = self.entry_of(key)
        if entry is None:
            return False
        return self.fabric is None or not entry.layouts or layout in entry.layouts

    def setting(self, layout: Layout, gpus_per_node: int) -> Setting:
        """A group on nodes of `gpus_per_node`, which are full of groups like it; UsageError for no such layout."""
        assert self.fabric is not None
        nodes, gpus = layout
        busy = min(gpus_per_node, self.fabric.devices_per_node)
        return Setting(
            fabric=self.fabric, nodes=nodes, gpus_per_node=gpus, groups=max(1, busy // max(1, gpus))
        )

    def answers(self, key: Key, entries: Sequence[float], setting: Setting) -> list[Answer]:
        """Times from the description, with their intervals, of messages of `entries` elements."""
        found = self.corrected(key)
        size = self.element_bytes * np.asarray(entries, dtype=np.float64)
        # Where rows say what the links reach, the range over other fabrics does not matter.
        qualities = _QUALITIES * (not found.is_corrected(setting))
        usual, best, worst = found.time_us(size, setting, quality=qualities)
        spread = _spread(found, setting)
        least = least_us(key[0], size, setting)
        low, high = np.clip(best / spread.low, least, usual), np.maximum(worst * spread.high, usual)
        return list(zip(usual.tolist(), low.tolist(), high.tolist(), strict=True))

    def least_us(self, key: Key, entries: Sequence[float], setting: Setting) -> NDArray[np.float64]:
        """What no message of `entries` elements is faster than, in µs."""
        return least_us(key[0], self.element_bytes * np.asarray(entries, dtype=np.float64), setting)

    def corrected(self, key: Key) -> CorrectedFabric:
        """The description, corrected by the rows that the regressor of `key` was measured in."""
        with self._lock:
            known = self._corrected.get(key)
        if known is None:
            known = self._new_corrected(key)
            with self._lock:
                self._corrected[key] = known
        return known

    def _new_corrected(self, key: Key) -> CorrectedFabric:
        assert self.fabric is not None
        entries = {} if self.predictor is None else self.predictor.bundle.entries
        source = source_of(key, entries)
        if source is None or self.predictor is None:
            return corrected(self.fabric, key[0], ())
        entry = entries[source.answered_by]
        found = corrected(self.fabric, entry.operator, self._rows(self.predictor, entry))
        if entry.operator == key[0]:
            return found
        # A substitute's rows say how fast the links are; the law knows the other operator's volumes.
        return CorrectedFabric(fabric=self.fabric, operator=key[0], correction=found.correction)

    def _rows(self, predictor: Predictor, entry: RegressorEntry) -> list[MeasuredRows]:
        """What the regressor answers in its measured layouts."""
        low, high = (max(1.0, end) for end in entry.training_range[0])
        sizes = np.unique(np.round(np.geomspace(low, high, _SIZES)))
        element_bytes = _element_bytes(predictor.bundle.manifest.dtype)
        rows = []
        for nodes, gpus in entry.layouts:
            vectors = [(size, float(nodes), float(gpus)) for size in sizes.tolist()]
            try:
                answers = predictor.answers_of(*entry.key, vectors)
            except DataError:  # not a valid answer: an error where it is used
                continue
            times_us = np.array([answers[vector][0] for vector in vectors])
            rows.append(
                MeasuredRows(
                    nodes=nodes, gpus_per_node=gpus, message_bytes=element_bytes * sizes, time_us=times_us
                )
            )
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """A source, on the nodes of a question; UsageError where the nodes have more devices than the fabric's."""

    source: CollectiveSource
    gpus_per_node: int

    def __post_init__(self) -> None:
        fabric = self.source.fabric
        if fabric is not None and self.source.is_asked and self.gpus_per_node > fabric.devices_per_node:
            raise UsageError(
                field="gpus_per_node",
                found=self.gpus_per_node,
                expected=f"at most {fabric.devices_per_node}, the devices per node of fabric {fabric.name}",
            )


_sources_lock = threading.Lock()
_MOST_SOURCES = 64


def collective_source(predictor: Predictor, asked: FabricChoice | None) -> CollectiveSource | None:
    """What answers the collectives: the fabric that is `asked`, else a description in the `predictor`'s bundle; None
    where its regressors do. DataError where a bundle's description is damaged.
    """
    root = predictor.at(1)
    known: dict[FabricChoice | None, CollectiveSource] = root.collective_sources
    with _sources_lock:
        if asked in known:
            return known[asked]
    found = _new_source(root, asked)
    if found is not None:
        with _sources_lock:
            if len(known) >= _MOST_SOURCES:
                known.clear()
            found = known.setdefault(asked, found)
    return found


def _new_source(predictor: Predictor, asked: FabricChoice | None) -> CollectiveSource | None:
    own = _described_in(predictor.bundle)
    dtype = predictor.bundle.manifest.dtype
    if asked is None:
        if not own:
            return None
        return CollectiveSource(predictor=predictor, fabric=own[0], is_asked=False, dtype=dtype)
    if isinstance(asked, FabricBundle):
        other = Predictor(asked.bundle)
        described = _described_in(asked.bundle)
        fabric = described[0] if described else None
        return CollectiveSource(predictor=other, fabric=fabric, is_asked=True, dtype=dtype)
    # Rows that were measured over the described fabric itself correct it; rows over another fabric do not.
    rows = predictor if asked in own else None
    return CollectiveSource(predictor=rows, fabric=asked, is_asked=True, dtype=dtype)


def _described_in(bundle: Bundle) -> tuple[Fabric, ...]:
    """Descriptions of the bundle's fabric; nodes of another size than the measured ones are left out."""
    known = bundle.manifest.fabric
    sizes = {one.gpus_per_node for one in measured_fabrics(known)}
    found = described_fabrics(known, where=f"bundle {bundle.path}")
    return tuple(one for one in found if not sizes or one.devices_per_node in sizes)


def _spread(found: CorrectedFabric, setting: Setting) -> Spread:
    if found.nearest(setting.nodes, setting.gpus_per_node) is not None:
        return EXTENDED_SPREAD
    is_two_level = setting.nodes > 1 and setting.gpus_per_node > 1
    return TWO_LEVEL_SPREAD if is_two_level else ONE_LEVEL_SPREAD


def _element_bytes(dtype: str) -> int:
    if dtype not in ELEMENT_BYTES:
        raise DataError(field="dtype", found=dtype, expected=f"one of {', '.join(ELEMENT_BYTES)}")
    return ELEMENT_BYTES[dtype]


def scaled_entries(entries: float, *, element_bytes: int, to: int) -> int:
    """Elements of `to` bytes that are as many bytes as `entries` elements of `element_bytes`."""
    return math.ceil(entries * element_bytes / to)
