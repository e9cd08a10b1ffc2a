"""Memory and cores that a control group leaves to this process, and the cores of its job."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelcast.collector.machine import probe_cpu
from kernelcast.collector.machine.probe_cpu import available_cores, available_memory_bytes, job_cores

GIB = 2**30


@pytest.fixture(name="machine")
def machine_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 64 GiB available, and a process in group /slurm/job of cgroup v2."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {64 * GIB // 1024} kB\n")
    (tmp_path / "cgroup").write_text("0::/slurm/job\n")
    monkeypatch.setattr(probe_cpu, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(probe_cpu, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(probe_cpu, "_CGROUPS", tmp_path / "fs")
    (tmp_path / "fs" / "slurm" / "job").mkdir(parents=True)
    return tmp_path / "fs"


def group(folder: Path, limit: str, used: int, file_pages: int = 0) -> None:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {file_pages}\nactive_file 7\n")


def test_without_a_limit_it_is_the_machines(machine: Path) -> None:
    assert available_memory_bytes() == 64 * GIB
    group(machine / "slurm" / "job", "max", 3 * GIB)
    assert available_memory_bytes() == 64 * GIB


def test_the_tightest_group_counts_and_pages_of_files_are_given_back(machine: Path) -> None:
    group(machine / "slurm" / "job", str(16 * GIB), 10 * GIB, file_pages=2 * GIB)
    assert available_memory_bytes() == 8 * GIB
    group(machine / "slurm", str(4 * GIB), 3 * GIB)
    assert available_memory_bytes() == GIB
    group(machine / "slurm", str(2 * GIB), 3 * GIB)
    assert available_memory_bytes() == 0


def test_version_1(machine: Path, tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("5:memory:/job\n4:cpu,cpuacct:/job\n")
    folder = machine / "memory" / "job"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(str(6 * GIB))
    (folder / "memory.usage_in_bytes").write_text(str(2 * GIB))
    assert available_memory_bytes() == 4 * GIB
    (machine / "cpu,cpuacct" / "job").mkdir(parents=True)
    (machine / "cpu,cpuacct" / "job" / "cpu.cfs_quota_us").write_text("100000")
    (machine / "cpu,cpuacct" / "job" / "cpu.cfs_period_us").write_text("100000")
    assert available_cores() == 1


def test_a_quota_of_cores(machine: Path) -> None:
    (machine / "slurm" / "cpu.max").write_text("100000 100000\n")
    assert available_cores() == 1


@pytest.mark.parametrize(
    ("environment", "cores"),
    [
        ({}, 1),
        ({"SLURM_JOB_ID": "7"}, 1),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "8(x2)"}, 8),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "8(x2),8"}, 8),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "8(x2),6", "SLURM_CPUS_ON_NODE": "6"}, 6),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "eight", "SLURM_CPUS_ON_NODE": "four"}, 1),
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x2)"}, 1),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "4096"}, 16),
    ],
)
def test_a_task_bound_to_one_core_counts_the_jobs(
    machine: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert machine.is_dir()
    assert job_cores(environment) == cores


def test_a_process_that_mpirun_bound_counts_the_launchers_cores() -> None:
    code = (
        "import os; from kernelcast.collector.machine.probe_cpu import job_cores;"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "print(job_cores({'OMPI_COMM_WORLD_SIZE': '2'}), job_cores({}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(available_cores()), "1"]


CPUINFO = """processor\t: 0
model name\t: Example 9000 \ncpu family\t: 6
model\t\t: 143
stepping\t: 8
flags\t\t: fpu avx2 hypervisor avx512f avx amx_tile sse
processor\t: 1
model name\t: another
"""


def test_a_cpu_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_cpu, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(probe_cpu.platform, "processor", lambda: "")
    monkeypatch.setattr(probe_cpu.platform, "machine", lambda: "riscv64")
    assert (probe_cpu.cpu_model(), probe_cpu.is_virtualised()) == ("riscv64", False)
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    assert probe_cpu.cpu_model() == "Example 9000 (family 6, model 143, stepping 8)"
    assert probe_cpu.cpu_instruction_sets() == ("amx_tile", "avx", "avx2", "avx512f")
    assert probe_cpu.is_virtualised()
    (tmp_path / "cpuinfo").write_text("CPU part\t: 0xd4f\nFeatures\t: fp asimd sve2 bf16\n")
    assert probe_cpu.cpu_model() == "0xd4f"
    assert probe_cpu.cpu_instruction_sets() == ("asimd", "bf16", "sve2")
    assert not probe_cpu.is_virtualised()


def test_caches_of_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_cpu, "_CACHES", tmp_path)
    assert probe_cpu.last_level_cache_bytes() == 0
    caches = [
        ("1", "Data", "48K"),
        ("1", "Instruction", "32K"),
        ("2", "Unified", "2M"),
        ("3", "Unified", "1X"),
    ]
    for number, texts in enumerate(caches):
        (folder := tmp_path / f"index{number}").mkdir()
        for name, text in zip(("level", "type", "size"), texts, strict=True):
            (folder / name).write_text(f"{text}\n")
    (tmp_path / "index4").mkdir()
    assert probe_cpu.cpu_caches() == (
        "L1 Data 48K", "L1 Instruction 32K", "L2 Unified 2M", "L3 Unified 1X",
    )  # fmt: skip
    assert probe_cpu.last_level_cache_bytes() == 2 << 20
    (tmp_path / "index2/size").write_text("-K")
    assert probe_cpu.last_level_cache_bytes() == 48 << 10


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("250000 100000", 2), ("50000 100000", 1), ("max 100000", 6), ("0 100000", 6), ("300000 0", 6),
        ("300000", 6), ("300000 100000 1", 6), ("900000 100000", 6),
    ],
)  # fmt: skip
def test_quotas(machine: Path, monkeypatch: pytest.MonkeyPatch, text: str, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    (machine / "cpu.max").write_text(text)
    assert (available_cores(), job_cores({})) == (cores, cores)


def test_the_groups_of_another_controller_set_no_limit(machine: Path, tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("5:pids:/job\n0::/../outside\n4:memory:/job\n")
    for folder in (machine / "pids/job", machine / "memory/job"):
        folder.mkdir(parents=True)
        (folder / "memory.limit_in_bytes").write_text(str(5 * GIB if "pids" in str(folder) else 9 * GIB))
        (folder / "memory.usage_in_bytes").write_text(str(GIB))
        (folder / "memory.stat").write_text("a name of two words 7\ntotal_inactive_file 3\n")
    assert available_memory_bytes() == 8 * GIB + 3


def test_memory_that_is_not_stated(machine: Path, tmp_path: Path) -> None:
    assert machine.is_dir()
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\n")
    with pytest.raises(OSError, match=r"meminfo names no MemAvailable$"):
        available_memory_bytes()
