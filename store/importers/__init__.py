"""Imports of published measurements: a generic CSV, and files of several projects.

A reader turns files into `Parsed` (samples, malformed lines, counts of skipped rows), without a database;
`store_parsed` stores all samples in one transaction. docs/importing.md describes the formats.
"""

from kernelcast.store.importers.aiconfigurator import read_aiconfigurator as read_aiconfigurator
from kernelcast.store.importers.all_reduce_tables import read_vidur as read_vidur
from kernelcast.store.importers.all_reduce_tables import read_vtrain as read_vtrain
from kernelcast.store.importers.description import Description as Description
from kernelcast.store.importers.description import read_description as read_description
from kernelcast.store.importers.estimate_train_time import PublishedError as PublishedError
from kernelcast.store.importers.estimate_train_time import (
    read_estimate_train_time as read_estimate_train_time,
)
from kernelcast.store.importers.estimate_train_time import read_published_errors as read_published_errors
from kernelcast.store.importers.generic_csv import CSV_FORMAT as CSV_FORMAT
from kernelcast.store.importers.generic_csv import read_csv_files as read_csv_files
from kernelcast.store.importers.liger import read_liger as read_liger
from kernelcast.store.importers.nccl_tests import read_nccl_tests as read_nccl_tests
from kernelcast.store.importers.parsed import Imported as Imported
from kernelcast.store.importers.parsed import Parsed as Parsed
from kernelcast.store.importers.parsed import store_parsed as store_parsed
from kernelcast.store.importers.simumax import read_simumax as read_simumax
from kernelcast.store.importers.tables import Problem as Problem
