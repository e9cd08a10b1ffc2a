"""The measurements of one bundle: one dtype, one kind of device, one software stack, one fabric."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self, TypedDict

from kernelcast.runtime import DataError, UsageError
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.bundle.manifest import Peak
from kernelcast.runtime.operators import OPERATORS, Operator
from kernelcast.store import Database, FabricRow, SampleRow
from kernelcast.store.read import F, FingerprintRow
from kernelcast.train.dataset import Table

OWN = "own"
"""Origin of the samples that no merge brought."""


class Wanted(TypedDict, total=False):
    """Which measurements to train on: a dtype, starts of fingerprint ids, and whether traces of real runs count."""

    dtype: str
    hardware: str
    software: str
    fabric: str
    traces: bool
    only_origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The training data of a bundle. The fingerprints are tuples of one, `fabric` empty without any collective.

    `samples` have a time: compute operators of the device with the software, whatever the fabric, and collectives of
    the fabric, which may come from elsewhere (`import nccl-tests`); their software is then the second in `software`.
    """

    dtype: str
    compute: tuple[ComputeFingerprint, ...]
    fabric: tuple[FabricFingerprint, ...]
    software: tuple[SoftwareFingerprint, ...]
    samples: tuple[SampleRow, ...]

    def measured_on(self, op: Operator) -> tuple[ComputeFingerprint | FabricFingerprint, SoftwareFingerprint]:
        """Hardware and software that decide an operator's time; a collective's hardware is the fabric, if known."""
        if op.is_collective:
            return (self.fabric or self.compute)[0], self.software[-1]
        return self.compute[0], self.software[0]

    @classmethod
    def choose(
        cls,
        database: Database,
        *,
        dtype: str = "",
        hardware: str = "",
        software: str = "",
        fabric: str = "",
        traces: bool = False,
        only_origin: str = "",
    ) -> Self:
        """The only one of each kind that has samples, or the one that the id prefix names.

        Hardware is chosen first, then software, dtype and fabric, each among the samples left by the choices before;
        a fabric named by `fabric` may come from other samples. Samples from `traces` of real runs were not measured
        alone, so they train only on request. `only_origin` leaves the samples of one merge, by the start of its id, or
        with `own` those that no merge brought. UsageError for several to choose from, or none that the option names;
        DataError where the database holds no sample with a time.
        """
        where = str(database.path)
        found = [s for s in database.read_samples() if _is_of(s, only_origin)]
        if only_origin and not found:
            known = sorted({s.origin[:12] or OWN for s in database.read_samples()})
            raise UsageError(f"{where}: no sample of origin {only_origin!r:.80}, found {', '.join(known)}")
        everything = [s for s in found if traces or s.source_kind != "trace"]
        if not everything:
            only = "only samples of real runs' traces (--traces)" if found else "no sample with a time"
            raise DataError(f"{where}: {only} in it, expected some (kernelcast collect compute)")
        # A database of collectives alone gives a bundle of collectives; else they follow the compute operators.
        samples = [s for s in everything if not _is_collective(s)] or everything
        device = _one(where, "hardware", database.hardware_list(), [s.compute_id for s in samples], hardware)
        samples = [s for s in samples if s.compute_id == device.id]
        versions = _one(
            where, "software", database.software_list(), [s.software_id for s in samples], software
        )
        samples = [s for s in samples if s.software_id == versions.id]
        element_type = _dtype(where, samples, dtype)
        collectives = [s for s in everything if _is_collective(s) and s.dtype == element_type]
        own = [s for s in collectives if s.compute_id == device.id and s.software_id == versions.id]
        # Collectives of another source train only when their fabric is named.
        reachable = collectives if fabric else own
        network, collectives = _collectives(where, database, reachable, fabric)
        measured_with = {s.software_id for s in collectives} - {versions.id}
        return cls(
            dtype=element_type,
            compute=(device.fingerprint,),
            fabric=(network.fingerprint,) if network else (),
            software=(
                versions.fingerprint,
                *(row.fingerprint for row in database.software_list() if row.id in measured_with),
            ),
            samples=(
                *(s for s in samples if not _is_collective(s) and _belongs(s, element_type)),
                *collectives,
            ),
        )


def measured_peaks(scope: Scope, tables: Iterable[Table]) -> tuple[Peak, ...]:
    """The peak of the scope's CPU, which is not published: the highest rate of its own measured matrix products.

    A lower bound of the real one, so utilization relative to it is an upper bound. Empty for a GPU, and without
    measured matrix products.
    """
    (device,) = scope.compute
    rates = [
        table.law.flops(table.direction, workload) / (1e-6 * time_us)
        for table in tables
        if device.kind == "cpu" and table.operator == "gemm"
        for workload, time_us in zip(table.workloads.tolist(), table.times_us.tolist(), strict=True)
    ]
    if not rates:
        return ()
    return (
        Peak(
            device=device.description,
            dtype=scope.dtype,
            flops_per_s=max(rates),
            source=f"highest rate among {len(rates)} measured matrix products",
        ),
    )


def _collectives(
    where: str, database: Database, samples: Sequence[SampleRow], prefix: str
) -> tuple[FabricRow | None, list[SampleRow]]:
    """The fabric named by `prefix`, or the only one, with its collectives; all collectives if no fabric is known.

    UsageError for several fabrics, none that is named, or one measured with several sets of software.
    """
    fabric_ids = [s.fabric_id for s in samples if s.fabric_id is not None]
    if not fabric_ids:
        if prefix:
            raise UsageError(f"{where}: no collective has a known fabric, expected no --fabric-id")
        return None, list(samples)
    network = _one(where, "fabric", database.fabric_list(), fabric_ids, prefix)
    chosen = [s for s in samples if s.fabric_id == network.id]
    if len({s.software_id for s in chosen}) > 1:
        found = "; ".join(sorted({s.software_id[:12] for s in chosen}))
        raise UsageError(
            f"{where}: collectives of fabric {network.id[:12]} were measured with several sets of software ({found}), "
            "expected one; export the wanted ones with kernelcast db export"
        )
    return network, chosen


def _is_of(sample: SampleRow, origin: str) -> bool:
    return not sample.origin if origin == OWN else sample.origin.startswith(origin)


def _is_collective(sample: SampleRow) -> bool:
    op = OPERATORS.get(sample.operator)
    return op is not None and op.is_collective


def _own_dtype(sample: SampleRow) -> str:
    op = OPERATORS.get(sample.operator)
    return op.dtype if op is not None else ""


def _belongs(sample: SampleRow, dtype: str) -> bool:
    return sample.dtype == (_own_dtype(sample) or dtype)


def _dtype(where: str, samples: Sequence[SampleRow], wanted: str) -> str:
    # Operators with a dtype of their own follow the other operators.
    trained = [sample for sample in samples if not _own_dtype(sample)] or samples
    found = sorted({sample.dtype for sample in trained})
    if wanted and wanted not in found:
        raise UsageError(f"{where}: dtype {wanted!r} was not measured, found {', '.join(found)}")
    if not wanted and len(found) > 1:
        raise UsageError(f"{where}: several dtypes, choose one with --dtype: {', '.join(found)}")
    return wanted or found[0]


def _one(
    where: str, kind: str, rows: Sequence[FingerprintRow[F]], sample_ids: Sequence[str], prefix: str
) -> FingerprintRow[F]:
    """The row named by `prefix` among the rows that have samples (one id per sample)."""
    counts = Counter(sample_ids)
    listed = sorted((row for row in rows if row.id in counts), key=lambda row: (-counts[row.id], row.id))
    matching = [row for row in listed if row.id.startswith(prefix)]
    if len(matching) == 1:
        return matching[0]
    known = "; ".join(f"{row.id[:12]} ({row.description}, {counts[row.id]} samples)" for row in listed)
    if not matching:
        raise UsageError(f"{where}: no {kind} with a sample starts with {prefix!r}; known: {known}")
    raise UsageError(f"{where}: more than one {kind}, choose one with --{kind}-id: {known}")
