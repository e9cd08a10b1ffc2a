"""What a model says about itself, so that one taken out of its bundle is still known: its ONNX metadata_props."""

from collections.abc import Mapping
from importlib.metadata import version

from kernelcast.runtime.bundle.fingerprint import canonical_json
from kernelcast.runtime.bundle.interval import Interval
from kernelcast.runtime.operators import OPERATORS, OperatorClass
from kernelcast.train.scope import Scope
from kernelcast.train.selection import Selected


def properties(
    selected: Selected, interval: Interval, coverage: float | None, scope: Scope, statistic: str
) -> Mapping[str, str]:
    """Texts by name. Numbers are JSON; nothing in them changes from run to run. See docs/bundle.md."""
    table = selected.table
    op = OPERATORS[table.operator]
    # A collective's time is the fabric's, everything else's the device's.
    collective = op.operator_class is OperatorClass.COMMUNICATION
    fingerprints = scope.fabric if collective and scope.fabric else scope.compute
    return {
        "operator": table.operator,
        "direction": table.direction.value,
        "features": " ".join(op.features),
        "feature_units": canonical_json(dict(op.features)),
        "unit": "microseconds",
        "dtype": scope.dtype,
        "statistic": statistic,
        "hardware": "; ".join(fingerprint.description for fingerprint in fingerprints),
        "software": "; ".join(fingerprint.description for fingerprint in scope.software),
        "processes_per_node": str(table.processes_per_node),
        "rows": str(len(table)),
        "training_range": canonical_json(training_range(selected)),
        "validation_error": canonical_json(selected.validation_error),
        "interval": canonical_json(interval.to_dict()),
        "interval_coverage": canonical_json(coverage),
        "kernelcast_version": version("kernelcast"),
    }


def training_range(selected: Selected) -> list[tuple[float, float]]:
    """[minimum, maximum] of each feature."""
    workloads = selected.table.workloads
    return list(zip(workloads.min(axis=0).tolist(), workloads.max(axis=0).tolist(), strict=True))
