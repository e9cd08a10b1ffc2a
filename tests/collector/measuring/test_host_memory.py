"""Freed memory that is kept: page faults of tensors that are made again and again, counted by the system."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from kernelcast.collector.machine.probe import probe, resolve_device
from kernelcast.collector.measuring import host_memory
from kernelcast.collector.measuring.host_memory import SETTING, keep_freed_memory, keeps_freed_memory

_FAULTS = """
import resource, torch
from kernelcast.collector.measuring.host_memory import keep_freed_memory
torch.set_num_threads(1)
if {keep}:
    keep_freed_memory()
def work():
    # More than what glibc maps by itself, and two sizes in turn.
    for entries in (12_000_000, 16_000_000) * 3:
        torch.zeros(entries)
for _ in range(4):  # the heap grows until it holds what is in use at once
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(keep: bool) -> int:
    answer = subprocess.run(
        [sys.executable, "-c", _FAULTS.format(keep=keep)], check=True, capture_output=True, text=True
    )
    return int(answer.stdout)


@pytest.mark.skipif(not keeps_freed_memory(), reason="the C library is not glibc")
@pytest.mark.slow
def test_tensors_reuse_memory_without_page_faults() -> None:
    assert _faults(keep=True) * 20 < _faults(keep=False)


def test_the_software_fingerprint_names_the_setting() -> None:
    environment = probe(resolve_device("cpu"), threads=1).software.environment
    assert (SETTING in environment) is keeps_freed_memory()


def test_what_the_c_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *given: said.append(given), gnu_get_libc_version=None)
    for platform, libraries in (("linux", [library]), ("linux", [SimpleNamespace()]), ("darwin", [library])):
        monkeypatch.setattr(host_memory, "sys", SimpleNamespace(platform=platform))
        monkeypatch.setattr(
            host_memory, "ctypes", SimpleNamespace(CDLL=lambda name, own=libraries[0]: {None: own}[name])
        )
        keep_freed_memory()
    # M_MMAP_MAX, M_TRIM_THRESHOLD and M_TOP_PAD of mallopt(3), once.
    assert said == [(-4, 0), (-1, 2147483647), (-2, 64 << 20)]
