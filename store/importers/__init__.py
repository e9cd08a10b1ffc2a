"""Imports of published measurements: a generic CSV, and files of several projects.

A reader turns files into `Parsed` (samples, malformed lines, counts of skipped rows), without a database;
`store_parsed` stores all samples in one transaction. docs/importing.md describes the formats.
"""

from kernelcast.store.importers.aiconfigurator import read_aiconfigurator
from kernelcast.store.importers.all_reduce_tables import read_vidur, read_vtrain
from kernelcast.store.importers.description import Description, read_description
from kernelcast.store.importers.estimate_train_time import read_estimate_train_time
from kernelcast.store.importers.generic_csv import CSV_FORMAT, read_csv_files
from kernelcast.store.importers.liger import read_liger
from kernelcast.store.importers.nccl_tests import read_nccl_tests
from kernelcast.store.importers.parsed import Imported, Parsed, store_parsed
from kernelcast.store.importers.published_errors import PublishedError, read_published_errors
from kernelcast.store.importers.simumax import read_simumax
from kernelcast.store.importers.tables import Problem

__all__ = [
    "CSV_FORMAT",
    "Description",
    "Imported",
    "Parsed",
    "Problem",
    "PublishedError",
    "read_aiconfigurator",
    "read_csv_files",
    "read_description",
    "read_estimate_train_time",
    "read_liger",
    "read_nccl_tests",
    "read_published_errors",
    "read_simumax",
    "read_vidur",
    "read_vtrain",
    "store_parsed",
]
