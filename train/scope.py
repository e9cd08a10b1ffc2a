"""Which measurements belong into one bundle: one dtype, one kind of device, one set of software, one fabric."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from kernelcast.runtime import DataError, UsageError
from kernelcast.runtime.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.store import Database, SampleRow


class _Listed(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def sample_count(self) -> int: ...


L = TypeVar("L", bound=_Listed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a bundle is trained on. The fingerprints are tuples of one, `fabric` empty without any collective."""

    dtype: str
    compute: tuple[ComputeFingerprint, ...]
    fabric: tuple[FabricFingerprint, ...]
    software: tuple[SoftwareFingerprint, ...]

    @classmethod
    def choose(cls, database: Database, *, dtype: str, hardware: str, software: str, fabric: str) -> Self:
        """The only one of each kind, or the one that the id prefix names.

        Raises:
            UsageError: several to choose from, or none that the prefix names.
            DataError: the database holds no sample.
        """
        where = str(database.path)
        device = _one(where, "hardware", database.hardware_list(), hardware)
        versions = _one(where, "software", database.software_list(), software)
        fabrics = [row for row in database.fabric_list() if row.sample_count]
        network = _one(where, "fabric", fabrics, fabric) if fabrics or fabric else None
        samples = database.read_samples(compute_id=device.id, software_id=versions.id)
        dtypes = sorted({sample.dtype for sample in samples})
        if not dtypes:
            raise DataError(f"{where}: no sample with a time for {device.description}")
        if dtype and dtype not in dtypes:
            raise UsageError(f"{where}: dtype {dtype!r} was not measured, found {', '.join(dtypes)}")
        if not dtype and len(dtypes) > 1:
            raise UsageError(f"{where}: several dtypes, choose one with --dtype: {', '.join(dtypes)}")
        return cls(
            dtype=dtype or dtypes[0],
            compute=(device.fingerprint,),
            fabric=(network.fingerprint,) if network else (),
            software=(versions.fingerprint,),
        )

    def samples(self, database: Database) -> list[SampleRow]:
        """Rows with a time that belong here: compute operators of the device, collectives of the fabric."""
        rows = database.read_samples(
            compute_id=self.compute[0].digest, software_id=self.software[0].digest, dtype=self.dtype
        )
        fabric_id = self.fabric[0].digest if self.fabric else None
        return [row for row in rows if row.fabric_id in (None, fabric_id)]


def _one(where: str, kind: str, rows: Sequence[L], prefix: str) -> L:
    matching = [row for row in rows if row.id.startswith(prefix)]
    known = "; ".join(f"{row.id[:12]} ({row.description}, {row.sample_count} samples)" for row in rows)
    if not rows:
        raise DataError(f"{where}: no {kind} in it, expected measurements (kernelcast collect compute)")
    if not matching:
        raise UsageError(f"{where}: no {kind} starts with {prefix!r}; known are {known}")
    if len(matching) > 1:
        raise UsageError(f"{where}: several {kind}s, choose one with --{kind}: {known}")
    return matching[0]
