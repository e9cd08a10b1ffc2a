"""From a job's description to its time limit; every scheduler's integration calls this package.

>>> from kernelcast.walltime import format_slurm
>>> format_slurm(3601)
'01:01:00'
"""

from kernelcast.runtime.frameworks.slurm import Allocation as Allocation
from kernelcast.runtime.frameworks.slurm import slurm_allocation as slurm_allocation
from kernelcast.runtime.frameworks.slurm import slurm_environment as slurm_environment
from kernelcast.runtime.request.field_types import Field as Field
from kernelcast.walltime.answer import Answer as Answer
from kernelcast.walltime.answer import answer as answer
from kernelcast.walltime.arithmetic import Overheads as Overheads
from kernelcast.walltime.arithmetic import Walltime as Walltime
from kernelcast.walltime.durations import format_slurm as format_slurm
from kernelcast.walltime.durations import format_time as format_time
from kernelcast.walltime.durations import read_duration as read_duration
from kernelcast.walltime.durations import read_time_limit as read_time_limit
from kernelcast.walltime.durations import whole_seconds as whole_seconds
from kernelcast.walltime.fields import FIELDS as FIELDS
from kernelcast.walltime.fields import Settings as Settings
from kernelcast.walltime.fields import merge as merge
from kernelcast.walltime.job import BatchScript as BatchScript
from kernelcast.walltime.job import Job as Job
from kernelcast.walltime.job import annotated_job as annotated_job
from kernelcast.walltime.job import find_job as find_job
from kernelcast.walltime.job import script_job as script_job
from kernelcast.walltime.kubernetes import KubernetesJob as KubernetesJob
