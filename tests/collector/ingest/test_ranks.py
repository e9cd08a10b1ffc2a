"""Ranks as one run: matched collectives, clocks, and which rank or link the others wait for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelcast.collector.ingest import ingest_traces, run
from kernelcast.collector.ingest.open_traces import opened_traces
from kernelcast.store import Database, check_database, merge_databases
from kernelcast.store.trace_report import trace_report, traced_runs
from tests.collector.ingest.rank_faults import Fault, faults
from tests.collector.ingest.rank_traces import MadeRun

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "traces"
# A loop of three processes; of rank 1 the data come late, or the layers compute more.
LOOP = """
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
is_slow = dist.get_rank() == 1

class Data(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if is_slow and sys.argv[2] == "loader":
            time.sleep(0.6)
        return torch.ones(32, 256)

class More(nn.Linear):
    def forward(self, x):
        # Products of another kind: on a busy machine a kernel of the other ranks too may take several times as long.
        with torch.no_grad():
            for _ in range(400 if is_slow and sys.argv[2] == "compute" else 0):
                torch.bmm(x.flatten(0, -2)[None], self.weight.t()[None])
        return super().forward(x)

model = nn.Sequential(More(256, 2048), nn.ReLU(), More(2048, 256))
parallel = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=4)) as profiler:
    for x in DataLoader(Data(), batch_size=1):
        parallel(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
        if profiler.step_num == 6:
            break
profiler.export_chrome_trace(f"{sys.argv[1]}/rank{dist.get_rank()}.json.gz")
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "fault",
    [one for one in faults() if ", 2 ranks" not in one.name and "16" not in one.name],
    ids=lambda one: one.name,
)
def test_faults_are_found(fault: Fault) -> None:
    """With the cause, rank and delay that were put in, and in the words of `findings.json` (WRITE_WHOLE_TEXTS=1)."""
    found, file = fault.found(), Path(__file__).with_name("findings.json")
    assert fault.is_right(found), found
    said = json.loads(file.read_text()) if file.exists() else {}
    if "WRITE_WHOLE_TEXTS" in os.environ:
        said[fault.name] = [one.line for one in found]
        file.write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n")
    assert [one.line for one in found] == said[fault.name]


def test_clocks_of_two_hosts(tmp_path: Path) -> None:
    made = MadeRun(per_host=4, offset_us={1: -52_000.0}, drift={1: -8e-5}, steps=8)
    with opened_traces([made.write(tmp_path / "ranks")]) as database:
        rows = database.query("SELECT start_ns, drift, error_ns FROM trace_clock ORDER BY timeline_number")
        skews = database.query("SELECT max(skew_us) AS most, count(*) AS calls FROM collective_match")
    assert {row["error_ns"] for row in rows[:4]} == {0}
    assert all(0 < row["error_ns"] < 3_000 and abs(row["drift"] - 8e-5) < 2e-5 for row in rows[4:])
    # All ranks of eight steps with three all-reduces; only the noise of the kernels is left, 1 % of 8 ms.
    assert skews == [{"most": pytest.approx(40, abs=40), "calls": 8 * 8 * 3}]


@pytest.mark.parametrize("has_groups", [True, False])
def test_collectives_without_numbers_are_matched_by_order(tmp_path: Path, has_groups: bool) -> None:
    made = MadeRun(ranks=4, has_numbers=False, has_groups=has_groups, late_recording={2: 3})
    with opened_traces([made.write(tmp_path / "ranks")]) as database:
        rows = database.query(
            "SELECT collective_number, ranks, max(skew_us) AS skew_us FROM collective_match GROUP BY 1, 2 ORDER BY 1"
        )
    assert [row["ranks"] for row in rows] == [3] * 3 + [4] * 9
    assert max(row["skew_us"] for row in rows) < 100


def test_one_rank_is_no_straggler(tmp_path: Path) -> None:
    made = MadeRun(ranks=2, kernel_factor={1: 2.0}).write(tmp_path / "ranks")
    with opened_traces([made / "rank001.json"]) as database:
        report = trace_report(database, *traced_runs(database))
    assert (report.findings, report.ranks) == ((), [])


def test_ranks_that_are_read_by_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = MadeRun(ranks=4, steps=2).write(tmp_path / "ranks")
    one, other, both = (tmp_path / name for name in ("one.db", "other.db", "both.db"))
    ingest_traces(sorted(folder.glob("*.json")), one)
    monkeypatch.setattr(run, "_IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(run, "available_cores", lambda: 2)
    done = ingest_traces(sorted(folder.glob("*.json")), other)
    assert all(file.is_new and file.trace for file in done)
    merge_databases([one, other], both)
    tables = ("traced_event", "matched_collective", "host_time", "trace_clock", "sample", "repetition")
    found = []
    for path in (one, other, both):
        assert check_database(path) == []
        with Database.open(path, read_only=True) as database:
            counts = [database.query(f"SELECT count(*) AS n FROM {table}")[0]["n"] for table in tables]
            answer = database.query("SELECT * FROM rank_arrival ORDER BY rank")
        found.append((counts, answer))
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "kind"), [("loader", "data_loader"), ("compute", "more_work")])
def test_real_processes(tmp_path: Path, change: str, kind: str) -> None:
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    subprocess.run([*torchrun, str(script), str(tmp_path), change], check=True, capture_output=True,
                   env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=3000)  # fmt: skip
    with opened_traces([tmp_path]) as database:
        report = trace_report(database, *traced_runs(database))
        most = database.query("SELECT max(delay_us) / 1e3 AS ms FROM collective_match")[0]["ms"]
    assert report.findings, report.ranks
    assert (report.findings[0].kind, report.findings[0].rank) == (kind, 1), report.findings
    if change == "loader":
        # On a busy machine the profiler loses some collectives of gloo's threads, and with them a step's delay.
        assert 0.2 * 600 < report.findings[0].delay_ms < 1.2 * 600
        assert most == pytest.approx(600, rel=0.2)


@pytest.mark.skipif(not SHARED.exists(), reason="no ../shared/data/traces")
def test_two_of_128_real_ranks_with_gaps_in_their_recordings() -> None:
    files = [SHARED / f"holistic-trace-analysis/sampled_rank-{rank}.json.gz" for rank in (0, 1)]
    with opened_traces(files) as database:
        rows = database.query("SELECT collective, late_us, rank FROM collective_match WHERE is_last")
    # Their ends agree within 0.4 ms, as both files say; other collectives were left out of one of them.
    assert [row["collective"] for row in rows] == [
        "all_to_all", "all_reduce", "_all_gather_base", "all_reduce", "_all_gather_base",
    ]  # fmt: skip
    assert {row["rank"] for row in rows} == {1}
    assert rows[3]["late_us"] == pytest.approx(22_328.2, abs=0.1)


def test_the_report_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.cli.printed import printed

    folder = MadeRun(ranks=4, kernel_factor={2: 1.5}).write(tmp_path / "ranks")
    [found] = json.loads(printed(capsys, "trace", "report", folder, "--json"))["runs"]
    [finding] = found["findings"]
    assert (finding["kind"], finding["rank"]) == ("slow_device", 2)
    assert "rank 2 arrives last in 12 of 12 collectives" in finding["line"]
    assert found["ranks"][0]["rank"] == 2
    assert found["matches"][0]["collectives"] == 12
