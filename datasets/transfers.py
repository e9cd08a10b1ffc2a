"""How far operators are off that one device's measurements answer for another: writes runtime/shipped/transfers.csv.

    python datasets/transfers.py            # writes the table
    python datasets/transfers.py --check    # computes it again, and compares

Every regressor of every measured device predicts the rows of other devices, and of other sources of the same device.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernelcast.datasets.build import TABLES, bundle_file
from kernelcast.datasets.tables import database_of, tables_for, write_or_check
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.answers.sources import doublings_beyond, source_of
from kernelcast.runtime.bundle.file import read_bundle
from kernelcast.runtime.bundle.transfer import Transfer
from kernelcast.runtime.catalogue import measured_hardware
from kernelcast.runtime.hardware.devices import ELEMENT_BYTES, device, device_named
from kernelcast.runtime.hardware.limits import Rates
from kernelcast.runtime.operators import OPERATORS, Direction, Key
from kernelcast.runtime.shipped import TRANSFERS
from kernelcast.store.doubts import NEVER_TRAIN

CHECKS = tables_for("checks")
"""Tables to compare with, by who published them."""

TRAINED_ON = {"b200-sxm": "SimuMax"}
"""Devices whose bundles rest on such a table: it is no check of them."""

FEWEST_ROWS, MOST_ROWS = 5, 4000
LEVEL = 0.9
COLUMNS = "operator,direction,by,origin,target,source,rows,median_log,median_error,log_half_width"
"""What `TransferError` has; the rows of a table are drawn at random, at most `MOST_ROWS` of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Workloads of one operator that were measured on a device, [rows, features], and their times in µs, [rows]."""

    device: str
    source: str
    key: Key
    vectors: NDArray[np.float64]
    times_us: NDArray[np.float64]


def measured() -> Iterator[Measured]:
    """All that can be compared: 16-bit samples of operators that compute, without those that cannot be right."""
    tables = {
        **{name: ("", one) for name, one in TABLES.items()},
        **{name: (name, one) for name, one in CHECKS.items()},
    }
    for name, (source, one) in tables.items():
        found: dict[tuple[str, Key], list[tuple[tuple[int, ...], float]]] = {}
        with (
            tempfile.TemporaryDirectory(prefix="kernelcast-") as folder,
            database_of(one, Path(folder) / f"{name}.db") as database,
        ):
            devices = {row.id: device_named(row.fingerprint.device_name) for row in database.hardware_list()}
            for sample in database.read_samples():
                of = devices[sample.compute_id]
                op = OPERATORS[sample.operator]
                doubtful = any(flag in NEVER_TRAIN for flag, _ in sample.flags)
                if of is None or op.is_collective or doubtful or ELEMENT_BYTES.get(sample.dtype) != 2:
                    continue
                key = sample.operator, Direction(sample.direction)
                found.setdefault((of.name, key), []).append((sample.vector, sample.time_us))
        for (target, key), rows in sorted(found.items()):
            chosen = np.random.default_rng(0).permutation(len(rows))[:MOST_ROWS]
            yield Measured(
                device=target,
                source=source,
                key=key,
                vectors=np.array([rows[row][0] for row in chosen], float),
                times_us=np.array([rows[row][1] for row in chosen], float),
            )


def lines() -> Iterator[str]:
    predictors = {
        name: Predictor(read_bundle(bundle_file(row)))
        for name, row in measured_hardware().items()
        if row.device == name
    }
    yield f"{COLUMNS}\n"
    for rows in measured():
        for origin, predictor in predictors.items():
            if origin != rows.device or rows.source not in ("", TRAINED_ON.get(origin, "")):
                yield from _line(rows, origin, predictor)


def _line(rows: Measured, origin: str, predictor: Predictor) -> Iterator[str]:
    """The line of one operator's rows, answered by the measurements of `origin`; none with too few rows in range."""
    source = source_of(rows.key, predictor.bundle.entries)
    start, end = Rates.of(device(origin), "float16"), Rates.of(device(rows.device), "float16")
    if source is None or start is None or end is None:
        return
    entry = predictor.bundle.entries[source.answered_by]
    asked = [source.asked(tuple(vector), entry) for vector in rows.vectors.astype(int).tolist()]
    vectors, factors = [vector for vector, _ in asked], np.array([factor for _, factor in asked])
    # This measures the error of transfers, not of extrapolation.
    inside = np.array([doublings_beyond(entry, vector) == 0 for vector in vectors])
    if entry.transfer is not None or inside.sum() < FEWEST_ROWS:
        return
    transfer = Transfer(origin=start, target=end, log_half_width=0.0)
    factors = factors * transfer.factors(source.answered_by, vectors, 2)
    predicted_us = factors * predictor.predict_us(*source.answered_by, vectors)
    off = np.log(predicted_us / rows.times_us)[inside]
    by = " ".join(source.answered_by) if source.is_substitute else ""
    sizes = (np.median(off), np.median(np.abs(np.expm1(off))), np.quantile(np.abs(off), LEVEL))
    texts = (*map(str, rows.key), by, origin, rows.device, rows.source, str(len(off)))
    yield ",".join((*texts, *(f"{size:.3f}" for size in sizes))) + "\n"


if __name__ == "__main__":
    write_or_check(TRANSFERS, "".join(lines()))
