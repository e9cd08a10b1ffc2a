"""gloo's loop is a batch thread in every process group that measures or trains, and nothing else is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernelcast.collector.machine.probe import probe
from kernelcast.collector.measuring import gloo_threads
from kernelcast.collector.measuring.gloo_threads import SETTING, calm_gloo, can_calm

# Prints the scheduling policies of all threads, by name, after groups were made and each of the deeds was done.
POLICIES = """
import json, os, sys
from collections import defaultdict
from pathlib import Path
import torch.distributed as dist
from kernelcast.collector.measuring.gloo_threads import calm_gloo
from kernelcast.collector.training.groups import GroupCache

def policies():
    found = defaultdict(set)
    for thread in Path("/proc/self/task").iterdir():
        found[(thread / "comm").read_text().strip()].add(os.sched_getscheduler(int(thread.name)))
    return {name: sorted(values) for name, values in found.items()}

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
said = [policies()]
calm_gloo()
said.append(policies())
GroupCache().of((0, 1))
said.append(policies())
print(json.dumps(said))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_loops_are_batch_threads_and_others_are_not(tmp_path: os.PathLike[str]) -> None:
    store = os.path.join(tmp_path, "store")
    both = [
        subprocess.Popen(
            [sys.executable, "-c", POLICIES, store, str(rank)], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    (said, _), _ = (process.communicate(timeout=600) for process in both)
    before, calm, with_a_group = json.loads(said)
    assert before["gloo_tcp_loop"] == [os.SCHED_OTHER]
    expected = [os.SCHED_BATCH] if can_calm() else [os.SCHED_OTHER]
    assert calm["gloo_tcp_loop"] == with_a_group["gloo_tcp_loop"] == expected
    others = {name: found for name, found in with_a_group.items() if name != "gloo_tcp_loop"}
    assert others
    assert all(found == [os.SCHED_OTHER] for found in others.values())


def test_where_it_is_forbidden_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert (SETTING in probe(cpu, threads=1).software.environment) is can_calm()

    def forbidden(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    assert not can_calm()
    calm_gloo()
    assert SETTING not in probe(cpu, threads=1).software.environment


def test_its_loops_are_found_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in (("11", "gloo_tcp_loop"), ("12", "python"), ("13", "gloo_tcp_loop\n"), ("14", "")):
        (tmp_path / number).mkdir()
        if name:  # a thread that has ended has none
            (tmp_path / number / "comm").write_text(name)
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(gloo_threads, "_THREADS", tmp_path)
    monkeypatch.setattr(
        os, "sched_setscheduler", lambda *given: asked.append((*given[:2], given[2].sched_priority))
    )
    calm_gloo()
    (own, policy, _), *others = asked
    assert (own, policy) == (0, os.sched_getscheduler(0))
    assert sorted(others) == [(11, os.SCHED_BATCH, 0), (13, os.SCHED_BATCH, 0)]

    def refused(*given: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    assert not can_calm()
    calm_gloo()
    monkeypatch.delattr(os, "sched_setscheduler")
    assert not can_calm()
