"""From a job's description to its time limit; every scheduler's integration calls this package.

>>> from kernelcast.walltime import format_slurm
>>> format_slurm(3601)
'01:01:00'
"""

from kernelcast.runtime.request.field_types import Field
from kernelcast.walltime.allocation import Allocation
from kernelcast.walltime.answer import Answer, answer
from kernelcast.walltime.arithmetic import Overheads, Walltime
from kernelcast.walltime.batch_script import BatchScript
from kernelcast.walltime.durations import (
    format_slurm,
    format_time,
    read_duration,
    read_time_limit,
    whole_seconds,
)
from kernelcast.walltime.fields import FIELDS
from kernelcast.walltime.job import Job, annotated_job, find_job, script_job
from kernelcast.walltime.kubernetes import KubernetesJob
from kernelcast.walltime.settings import Settings, merge
from kernelcast.walltime.slurm import slurm_allocation, slurm_environment

__all__ = [
    "FIELDS",
    "Allocation",
    "Answer",
    "BatchScript",
    "Field",
    "Job",
    "KubernetesJob",
    "Overheads",
    "Settings",
    "Walltime",
    "annotated_job",
    "answer",
    "find_job",
    "format_slurm",
    "format_time",
    "merge",
    "read_duration",
    "read_time_limit",
    "script_job",
    "slurm_allocation",
    "slurm_environment",
    "whole_seconds",
]
