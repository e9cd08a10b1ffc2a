"""Tasks in processes of their own: results, errors, and workers that are killed.

The tasks are expressions and their function is `eval`: the workers are fresh processes and cannot import this file.
"""

import os

import pytest

from kernelcast.runtime import DataError, UsageError
from kernelcast.runtime.workers import available_cores, each

PROCESS = "__import__('os').getpid()"
FAILS = "(_ for _ in ()).throw(__import__('kernelcast.runtime.errors', fromlist=['_']).UsageError('three is many'))"
DIES = "__import__('os').kill(__import__('os').getpid(), 9)"


def test_one_job_works_here_and_in_order() -> None:
    assert list(each(eval, [PROCESS] * 3, jobs=1)) == [(number, os.getpid()) for number in range(3)]
    assert list(each(eval, [PROCESS], jobs=4)) == [(0, os.getpid())]
    assert list(each(eval, [], jobs=4)) == []


def test_several_jobs_work_elsewhere() -> None:
    found = dict(each(eval, [*(f"{number} ** 2" for number in range(4)), PROCESS], jobs=2))
    assert [found[number] for number in range(4)] == [0, 1, 4, 9]
    assert found[4] != os.getpid()
    assert available_cores() >= 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_a_task_is_raised_as_it_is(jobs: int) -> None:
    with pytest.raises(UsageError, match=r"^three is many$"):
        list(each(eval, ["1", "2", FAILS, "4"], jobs=jobs))


def test_a_killed_worker_is_one_line() -> None:
    with pytest.raises(DataError, match=r"^a worker process was killed \(out of memory\?\)$"):
        list(each(eval, [DIES, "1"], jobs=2))
