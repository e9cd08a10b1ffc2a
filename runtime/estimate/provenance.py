"""Where an estimate's times come from, and whether that is the software of the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernelcast.runtime.answers.fabric_choice import FabricUse
from kernelcast.runtime.bundle.calibration import CalibrationUse
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.dataclass import asdict, dataclass, replace
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.operators import OPERATORS

if TYPE_CHECKING:
    from kernelcast.runtime.stack.stack import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the times come from: the bundle, and the hardware and software that were measured, readable.

    `calibration` is None where the bundle has none; `collectives` is the fabric that answered them, None where they
    are the bundle's own and nothing describes them. `data` says whose measurements answered, where that is stated.
    `stack` is None where none was asked for.
    """

    bundle: str
    bundle_digest: str
    dataset_digest: str
    kernelcast_version: str
    created_at: str
    dtype: str
    statistic: str
    compute: tuple[str, ...]
    fabric: tuple[str, ...]
    software: tuple[str, ...]
    calibration: CalibrationUse | None = None
    collectives: FabricUse | None = None
    data: tuple[str, ...] = ()
    stack: Stack | None = None

    def factor_of(self, operator: str) -> float:
        """The factor of a stack or an applied calibration in an operator's time."""
        if self.stack is not None:
            return self.stack.factor_of(operator)
        if self.calibration is None or not self.calibration.applied:
            return 1.0
        return self.calibration.factors[OPERATORS[operator].operator_class.value]

    def to_dict(self) -> dict[str, Any]:
        values = asdict(replace(self, stack=None)) | {
            "stack": None if self.stack is None else self.stack.said()
        }
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def provenance_of(bundle: Bundle, timeline: str, calibrated: bool, stack: Stack | None) -> Provenance:
    """Provenance of answers with one timeline, by a bundle with or without its calibration, or with a stack."""
    manifest = bundle.manifest
    calibration = manifest.calibration
    return Provenance(
        bundle=str(bundle.path),
        bundle_digest=bundle.digest,
        dataset_digest=manifest.dataset_digest,
        kernelcast_version=manifest.kernelcast_version,
        created_at=manifest.created_at,
        dtype=manifest.dtype,
        statistic=manifest.statistic,
        compute=tuple(fingerprint.description for fingerprint in manifest.compute),
        fabric=tuple(fingerprint.description for fingerprint in manifest.fabric),
        software=tuple(fingerprint.description for fingerprint in manifest.software),
        calibration=None
        if calibration is None
        else CalibrationUse.of(
            calibration,
            timeline=timeline,
            wanted=calibrated,
            instead="" if stack is None else f"stack {stack.name}",
        ),
        stack=stack,
    )


def other_software(stated: str, provenance: Provenance) -> tuple[str, ...]:
    """Items of `stated` (`torch 2.9, FlashAttention 3`) that no answering measurement names, ignoring case.

    Raises:
        UsageError: nothing is stated.
    """
    wanted = [one.strip() for one in stated.split(",") if one.strip()]
    if not wanted:
        raise UsageError(
            f"--software is {stated!r:.80}, expected names such as 'torch 2.9, FlashAttention 3'"
        )
    known = " ".join((*provenance.data, *provenance.software)).lower()
    return tuple(one for one in wanted if one.lower() not in known)


def software_warning(others: Sequence[str], provenance: Provenance) -> str:
    """One line about software that the measurements do not name; empty without any."""
    if not others:
        return ""
    measured = "; ".join(provenance.data or provenance.software)
    return f"software: no measurement names {', '.join(others)}; they are of {measured}"
