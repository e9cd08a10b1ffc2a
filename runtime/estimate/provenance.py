"""What an estimate says about where its times come from."""

from kernelcast.runtime.bundle.calibration import CalibrationUse
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.estimate.estimate import Provenance
from kernelcast.runtime.stack import Stack


def provenance_of(bundle: Bundle, timeline: str, calibrated: bool, stack: Stack | None) -> Provenance:
    """That of answers with one timeline, of a bundle with or without its calibration, or with a stack."""
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
