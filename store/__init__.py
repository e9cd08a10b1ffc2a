"""The versioned SQLite store of measurements: records, their statistics, and `Database`."""

from kernelcast.store.canonical import utc_now
from kernelcast.store.check import check_database
from kernelcast.store.copying import Merged, merge_databases
from kernelcast.store.database import Database
from kernelcast.store.database_file import DEFAULT_MAX_SIZE_BYTES
from kernelcast.store.read import FabricRow, HardwareRow, PointKey, SampleRow, SoftwareRow, dataset_digest
from kernelcast.store.records import Kernel, Repetition, Sample, Status
from kernelcast.store.runs import (
    KERNELCAST_COLLECTOR,
    EventKind,
    IngestedTrace,
    MeasuredRun,
    Run,
    Source,
    Timeline,
    TracedEvent,
    TracedStep,
    UnrecognisedKernels,
)
from kernelcast.store.statistics import middle_five_mean_us, percentile, quiet_us, spread
from kernelcast.store.steps import MeasuredStep, Prediction, PredictorRecord

__all__ = [
    "DEFAULT_MAX_SIZE_BYTES",
    "KERNELCAST_COLLECTOR",
    "Database",
    "EventKind",
    "FabricRow",
    "HardwareRow",
    "IngestedTrace",
    "Kernel",
    "MeasuredRun",
    "MeasuredStep",
    "Merged",
    "PointKey",
    "Prediction",
    "PredictorRecord",
    "Repetition",
    "Run",
    "Sample",
    "SampleRow",
    "SoftwareRow",
    "Source",
    "Status",
    "Timeline",
    "TracedEvent",
    "TracedStep",
    "UnrecognisedKernels",
    "check_database",
    "dataset_digest",
    "merge_databases",
    "middle_five_mean_us",
    "percentile",
    "quiet_us",
    "spread",
    "utc_now",
]
