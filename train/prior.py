"""Another device's bundle as a prior: its regressors, corrected by a few points measured on this device.

The other device's times are scaled by the peaks of both devices. A Gaussian process in log space fits the points'
deviation from them (runtime/bundle/transfer.py). The interval comes from leave-one-out errors.

The points to measure leave the least uncertainty about the other workloads. The prior's errors are taken to be alike
where workloads are (`Likeness`). Greedily, the next workload is the one that lowers the sum of the posterior variances
over all candidates most, directions equally weighted (Seo et al., "Gaussian process regression: active data selection
and test point rejection", IJCNN 2000).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

import numpy as np

from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, content_digest
from kernelcast.runtime.bundle.manifest import Peak
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.bundle.transfer import LIKENESS, Correction, Transfer, centred, positions
from kernelcast.runtime.catalogue import transfer_log_half_width
from kernelcast.runtime.hardware.devices import ELEMENT_BYTES, device_named
from kernelcast.runtime.hardware.limits import Rates
from kernelcast.runtime.operators import OPERATORS, Key, Operator
from kernelcast.train.dataset import Array, Table
from kernelcast.train.intervals import conformal_quantile

MOST_POINTS = 160
"""With more rows an operator gets its own regressor; up to here the one with the smaller held-out error."""

UNKNOWN_LOG_HALF_WIDTH = math.log(2.0)
"""Of an operator transferred without a measured point, where the table of transfer errors has no entry."""

_BEYOND_LARGEST = 1.5
# A few points may fit well by chance: the least half-width is this divided by the number of points.
_ONE_POINT_LOG_HALF_WIDTH = 0.5
# With an unknown peak both devices count as this fast, so that times are not scaled.
_ANY_FLOPS_PER_S, _ANY_BYTES_PER_S = 1e12, 1e11
_USUAL_ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """A bundle of another device, and the rates of both: times are scaled by what `origin` and `target` need at least.

    `scaled_by` names the source of the scale. `is_comparable`: times of one device are a useful guess for the other, as
    both are GPUs with published peaks, or devices of one kind.
    """

    bundle: Bundle
    origin: Rates
    target: Rates
    scaled_by: str
    is_comparable: bool
    _predictors: dict[Key, Predictor] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, bundle: Bundle, compute: ComputeFingerprint, dtype: str, peaks: Iterable[Peak] = ()) -> Self:
        """`bundle` as the prior of the device `compute`, which computes in `dtype`; `peaks` are its measured ones.

        Peaks are published (devices.toml), else measured ones of matrix products; without them times are not scaled.
        """
        donor = bundle.manifest.compute[0]
        origin, target = _published(donor, dtype), _published(compute, dtype)
        if origin is not None and target is not None:
            by = "the published peaks of both devices"
            return cls(bundle=bundle, origin=origin, target=target, scaled_by=by, is_comparable=True)
        there, here = _rate(bundle.manifest.peaks, dtype), _rate(peaks, dtype)
        is_known = there is not None and here is not None
        return cls(
            bundle=bundle,
            origin=_measured(donor, there if is_known else None),
            target=_measured(compute, here if is_known else None),
            scaled_by="the measured rates of matrix products, where these count"
            if is_known
            else "nothing: a device's peaks are not known",
            is_comparable=donor.kind == compute.kind,
        )

    @property
    def name(self) -> str:
        """The device that was measured."""
        return self.origin.device

    def __contains__(self, key: object) -> bool:
        """Whether it has a regressor of an operator that computes."""
        return key in self.bundle.entries and not OPERATORS[key[0]].is_collective  # type: ignore[index]

    def carried(self, key: Key) -> RegressorEntry:
        """Its regressor as one of the target, scaled by the peaks alone."""
        entry = self.bundle.entries[key]
        width = self._log_half_width(key)
        if entry.transfer is None:
            transfer = Transfer(origin=self.origin, target=self.target, log_half_width=width)
        else:
            transfer = entry.transfer.to(self.target, width)
        # Held-out errors of the other device say nothing about this one.
        return replace(
            entry,
            data=self._data(entry),
            transfer=transfer,
            interval_coverage=None,
            extrapolation_error=None,
            widening=None if entry.widening is None else replace(entry.widening, held_out=()),
        )

    def predicted_us(self, key: Key, vectors: Array) -> Array:
        """Predictions for the target, [rows] in µs, of workloads [rows, features]."""
        if key not in self._predictors:
            entries = MappingProxyType({key: self.carried(key)})
            self._predictors[key] = Predictor(replace(self.bundle, entries=entries))
        operator, direction = key
        return self._predictors[key].predict_us(operator, direction, vectors)

    def positions(self, key: Key, vectors: Array) -> Array:
        """Where workloads [rows, features] lie for a correction, [rows, 2 + features]."""
        return positions(self.predicted_us(key, vectors), self.roofline_us(key, vectors), vectors)

    def roofline_us(self, key: Key, vectors: Array) -> Array:
        """Least times of the target, [rows] in µs."""
        element_bytes = ELEMENT_BYTES.get(self.bundle.entries[key].dtype, _USUAL_ELEMENT_BYTES)
        return self.target.roofline_us(OPERATORS[key[0]], key[1], vectors.tolist(), element_bytes)

    def _log_half_width(self, key: Key) -> float:
        entry = self.bundle.entries[key]
        origin = self.origin.device if entry.transfer is None else entry.transfer.origin.device
        if device_named(origin) is None or device_named(self.target.device) is None:
            return UNKNOWN_LOG_HALF_WIDTH
        return transfer_log_half_width(key, origin, self.target.device)

    def _data(self, entry: RegressorEntry) -> str:
        return entry.data or (entry.transfer.origin.device if entry.transfer else self.origin.device)


def corrected(prior: Prior, table: Table, *, statistic: str) -> RegressorEntry:
    """The prior's regressor of the table's operator, corrected by its rows, one or more.

    The model stays the prior's: `prior.bundle.model(entry.key)`. `statistic` is the one of the table's times.
    """
    key = table.operator, table.direction
    carried = prior.carried(key)
    transfer = carried.transfer
    assert transfer is not None  # `carried` makes one
    fitted, held_out_logs = fit_correction(
        prior.positions(key, table.workloads),
        np.log(table.times_us / prior.predicted_us(key, table.workloads)),
        earlier=transfer.correction,
    )
    errors = np.abs(table.times_us / np.exp(held_out_logs) / table.times_us - 1)
    own = min(carried.interval.log_half_widths)
    width = _log_half_width(np.abs(held_out_logs))
    return replace(
        carried,
        # The regressor's own interval is added as squares.
        transfer=replace(transfer, correction=fitted, log_half_width=math.sqrt(max(0.0, width**2 - own**2))),
        validation_error=float(errors.mean()),
        load=table.load,
        role_errors=table.by_role(errors),
        statistic=statistic,
        table_digest=content_digest(
            [carried.table_digest, table.workloads.tolist(), table.times_us.tolist()]
        ),
    )


def correcting_points(entry: RegressorEntry) -> int | None:
    """How many measured points corrected a prior's regressor; None for any other one."""
    correction = None if entry.transfer is None else entry.transfer.correction
    return None if correction is None else correction.points


def fit_correction(
    knots: Array, logs: Array, *, earlier: Correction | None = None
) -> tuple[Correction, Array]:
    """Correction by `logs` [points], log(measured / predicted) at `knots` [points, 2 + features].

    With it, log(measured / predicted) of each point by a correction without it, which needs no fit of its own
    (Rasmussen and Williams, Gaussian Processes for Machine Learning, eq. 5.12). Predictions hold `earlier` already.
    """
    places = centred(knots, knots)
    covariance = LIKENESS.covariance(places, places) + LIKENESS.noise**2 * np.eye(len(knots))
    inverse = np.linalg.inv(covariance)
    weights = inverse @ logs
    correction = Correction(
        knots=tuple(map(tuple, knots.tolist())),
        weights=tuple(weights.tolist()),
        likeness=LIKENESS,
        earlier=earlier,
    )
    return correction, weights / np.diag(inverse)


def _log_half_width(off: Array) -> float:
    """Half-width expected to hold 90 % of further workloads, from the errors of held-out points [points]."""
    known = conformal_quantile(off)
    known = _BEYOND_LARGEST * float(off.max()) if known is None else known
    return max(known, _ONE_POINT_LOG_HALF_WIDTH / len(off))


def _published(compute: ComputeFingerprint, dtype: str) -> Rates | None:
    found = device_named(compute.device_name)
    return None if found is None else Rates.of(found, dtype) or Rates.of(found, "float16")


def _rate(peaks: Iterable[Peak], dtype: str) -> float | None:
    return next((peak.flops_per_s for peak in peaks if peak.dtype == dtype), None)


def _measured(compute: ComputeFingerprint, flops_per_s: float | None) -> Rates:
    return Rates(
        device=compute.description, flops_per_s=flops_per_s or _ANY_FLOPS_PER_S, bytes_per_s=_ANY_BYTES_PER_S
    )


MOST_CANDIDATES = 250
"""Most candidate workloads of an operator; drawn at random from more."""


def answered(prior: Prior, op: Operator) -> tuple[Key, ...]:
    return tuple((op.name, direction) for direction in op.costs if (op.name, direction) in prior)


def most_telling(prior: Prior, keys: Sequence[Key], vectors: Array, count: int) -> list[int]:
    """Numbers of the `count` workloads [candidates, features] to measure, the most telling first."""
    left, noises = [], []
    for key in keys:
        places = prior.positions(key, vectors)
        places = centred(places, places)
        covariance = LIKENESS.covariance(places, places)
        # Directions are equally weighted, however uncertain they are.
        left.append(covariance / np.trace(covariance))
        noises.append(LIKENESS.noise**2 / np.trace(covariance))
    chosen: list[int] = []
    while len(chosen) < min(count, len(vectors)):
        gain = np.sum(
            [(one**2).sum(axis=0) / (np.diag(one) + own) for one, own in zip(left, noises, strict=True)],
            axis=0,
        )
        gain[chosen] = -1.0
        best = int(np.argmax(gain))
        chosen.append(best)
        left = [
            one - np.outer(one[:, best], one[:, best]) / (one[best, best] + own)
            for one, own in zip(left, noises, strict=True)
        ]
    return chosen
