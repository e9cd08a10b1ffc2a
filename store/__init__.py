"""The versioned SQLite store of measurements.

The rest of kernelcast imports from here: records, their statistics, and `Database`, which keeps them.
"""

from kernelcast.store.canonical import utc_now
from kernelcast.store.database import Database
from kernelcast.store.listing import FabricRow, HardwareRow, SoftwareRow
from kernelcast.store.read import PointKey, SampleRow, dataset_digest
from kernelcast.store.records import Kernel, Repetition, Sample, Status
from kernelcast.store.runs import KERNELCAST_COLLECTOR, Run, Source
from kernelcast.store.statistics import middle_five_mean_us, percentile, quiet_us, spread
from kernelcast.store.steps import MeasuredStep, Prediction, PredictorRecord

__all__ = [
    "KERNELCAST_COLLECTOR",
    "Database",
    "FabricRow",
    "HardwareRow",
    "Kernel",
    "MeasuredStep",
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
    "dataset_digest",
    "middle_five_mean_us",
    "percentile",
    "quiet_us",
    "spread",
    "utc_now",
]
