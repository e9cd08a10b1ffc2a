"""What drawn runs come to, to five digits: `drawn_runs.txt`, which WRITE_DRAWN_RUNS=1 pytest THIS_FILE writes.

Ranks whose kernels, copies, collectives, waits and host calls are drawn; samples, some impossible, far off,
failed or flagged. Written are reports, critical paths, differences, pages, traces, exports and doubts.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.store import (
    Database,
    EventKind,
    IngestedTrace,
    Kernel,
    MeasuredRun,
    MeasuredStep,
    Prediction,
    Repetition,
    Run,
    Sample,
    Source,
    Timeline,
    TracedEvent,
    TracedStep,
    UnrecognisedKernels,
    check_database,
)
from kernelcast.store.difference import diff_databases
from kernelcast.store.doubts import doubtful_samples
from kernelcast.store.export import Subset, export_database
from kernelcast.store.runs import HostTime, LostCollective, MatchedCollective, StreamWait, TraceClock
from kernelcast.store.trace_difference import compare_traces
from kernelcast.store.trace_export import write_trace
from kernelcast.store.trace_page import trace_page, write_difference_page
from kernelcast.store.trace_report import trace_report

TEXT = Path(__file__).with_name("drawn_runs.txt")
H100 = ComputeFingerprint(
    kind="cuda",
    device_name="NVIDIA H100 80GB HBM3",
    memory_gib=80,
    multiprocessors=132,
    compute_capability="9.0",
)
NODE = FabricFingerprint(
    backend="nccl", gpus_per_node=2, links=("NVLink",), nics=("400 Gb/s InfiniBand NDR ×1",)
)
TORCHES = [SoftwareFingerprint(torch="2.6.0"), SoftwareFingerprint(torch="2.7.0", environment=("A=1",))]
DTYPE = "bfloat16"
KINDS = [
    EventKind(name=f"gemm_{m}", category="kernel", class_="compute", host_operator="aten::mm", direction=direction,
              shapes=f"[[{m},1024],[1024,{n}]]", dtype=DTYPE, batch=1, m=m, k=1024, n=n,
              grid="[8,8,1]", block="[256,1,1]", registers=128, occupancy_percent=37.5)
    for m, n, direction in ((4096, 3072, "forward"), (3072, 1024, "backward"), (512, 64, "recomputation"))
]  # fmt: skip
KINDS += [
    EventKind(name="flash_fwd", category="kernel", class_="compute", host_operator="flash::fwd", direction="forward",
              shapes="[[4,1024,16,64]]", operator="attention", role="core", dtype=DTYPE, vector="[4, 1024, 16, 64]"),
    EventKind(name="gelu_kernel", category="kernel", class_="compute", host_operator="aten::gelu", dtype=DTYPE,
              direction="forward", shapes="[[4,1024,4096]]"),
    EventKind(name="conv", category="kernel", class_="compute", host_operator="aten::cudnn_convolution", dtype=DTYPE,
              direction="forward", shapes="[[8,64,28,28],[128,64,3,3]]"),
    EventKind(name="dgrad", category="kernel", class_="compute", host_operator="aten::convolution_backward",
              direction="backward", dtype=DTYPE, shapes="[[8,128,28,28],[8,64,28,28],[128,64,3,3],[]]"),
    EventKind(name="adam", category="kernel", class_="compute", host_operator="aten::_fused_adamw_", dtype="float32"),
    EventKind(name="Memcpy DtoH (Device -> Pageable)", category="gpu_memcpy", class_="memory", message_bytes=1 << 20),
    EventKind(name="Memset (Device)", category="gpu_memset", class_="memory", message_bytes=4096),
]  # fmt: skip
SCOPES = [
    "",
    "Model_0",
    *(f"Model_0 / Block_{block} / {part}_0" for block in (0, 1) for part in ("MLP", "Attn")),
]
HOST = [("operator", "aten::mm"), ("annotation", "forward"), ("annotation", "enumerate(DataLoader)#next"),
        ("runtime", "cudaStreamSynchronize"), ("runtime", "cudaMemcpyAsync")]  # fmt: skip


def collective(random: Random, rank: int, ranks: int) -> EventKind:
    """Of all ranks, or of two neighbours (the last of an odd number is alone)."""
    members = list(range(ranks))
    if random.random() < 0.6:
        members = members[rank // 2 * 2 : rank // 2 * 2 + 2]
    name = random.choice(["allreduce", "allgather"])
    return EventKind(
        name=f"nccl_{name}", category="kernel", class_="communication", collective=name, dtype=DTYPE,
        group_ranks=str(members), group_size=len(members), message_bytes=random.choice([1 << 16, 1 << 24]),
    )  # fmt: skip


SLOW = {4: (0, "compute", 1.6), 5: (1, "memory", 30.0), 8: (3, "communication", 4.0), 7: (0, "host", 20.0)}
"""Seeds of runs with a rank that takes longer: the rank, what of it, and how many times as long."""


def timeline(
    trace_id: str, rank: int, ranks: int, seed: int, *, longer: float, marked: bool, known_waits: bool
) -> Timeline:
    """Three or four steps. What runs is drawn by `seed` for all ranks; how long it takes, for each of them."""
    work, times = Random(seed), Random(1000 * seed + rank)
    steps, events, matched, waits, host = [], [], list[Any](), [], []
    now_ns, number, call, last = 1000, 0, 0, {}
    count = work.choice([3, 4])
    for step in range(count):
        begin_ns = now_ns
        for _ in range(work.randint(6, 12)):
            is_collective = work.random() < 0.25
            kind = collective(work, rank, ranks) if is_collective else work.choice(KINDS)
            scope, is_late = work.choice(SCOPES), work.random() < 0.3
            stream = 20 if is_collective else 9 if kind.class_ == "memory" and work.random() < 0.5 else 7
            idle_ns = times.randint(20_000, 400_000) if is_late else times.randint(0, 3_000)
            late_ns = work.choice([idle_ns, idle_ns // 2, 0, None])
            slow_rank, slow_class, slower = SLOW.get(seed, (None, "", 1.0))
            factor = {slow_class: slower} if slow_rank == rank else {}
            duration_ns = int(
                factor.get(kind.class_, 1.0) * times.uniform(0.9, 1.2) * work.randint(5_000, 300_000) * longer
            )
            start_ns, call = now_ns + idle_ns, call + work.randint(0, 1)
            exposed_ns = duration_ns // work.choice([1, 1, 3]) if is_collective else duration_ns
            launch_ns = None if late_ns is None else max(0, start_ns - times.randint(500, 200_000))
            if is_collective and times.random() < 0.95:
                parts_ns = [
                    int(times.randint(0, most_ns) * factor.get(one, 1.0))
                    for one, most_ns in (("compute", 500_000), ("memory", 9_000), ("host", 20_000))
                ]
                place = 10 * number + (
                    0 if str(ranks - 1) in kind.group_ranks and "0" in kind.group_ranks else rank // 2
                )
                matched.append(MatchedCollective(len(events), place, *parts_ns))
            number += is_collective
            if 7 in last and stream != 7 and work.random() < 0.5:
                waits.append(StreamWait(len(events), last[7]))
            last[stream] = len(events)
            events.append(
                TracedEvent(kind, start_ns, duration_ns, exposed_ns, idle_ns, late_ns, 0, stream,
                            step if marked else None, launch_ns, call, 10 * len(events), scope)
            )  # fmt: skip
            now_ns = start_ns + (exposed_ns if is_collective else duration_ns)
        cut = " (cut)" if step == count - 1 and seed % 2 else ""
        steps.append(TracedStep(f"ProfilerStep#{step + 5}{cut}", begin_ns, now_ns - begin_ns))
        for kind, name in HOST:
            total_ns = times.randint(10_000, 900_000) * (1 + 8 * (rank == seed % 3 == 1))
            host.append(
                HostTime(step if marked else None, kind, name, work.choice([1, 3]), total_ns, total_ns // 2)
            )
    lost = [LostCollective(0, 50_000, 40_000)] if rank == ranks - 1 and seed % 3 == 0 else []
    matched = [one for one in matched if not lost or one.collective_number]
    return Timeline(
        trace_id, tuple(steps) if marked else (), tuple(events), TraceClock(700 * rank, 1e-6 * rank, 300 * rank),
        matched, lost, waits if known_waits else (), host,
    )  # fmt: skip


def samples(run_id: str, seed: int) -> Iterator[Sample]:
    """Some 25 of each operator and direction; every seventh far off, of some operators below what an H100 can do."""
    random = Random(seed)
    for name, direction in (("gemm", Direction.FORWARD), ("gelu", Direction.BACKWARD), ("all_reduce", Direction.ONCE),
                            ("residual_add", Direction.FORWARD)):  # fmt: skip
        fast = random.choice([1.0, 1.0, 1.0, 1.0, 0.02])
        for row in range(25):
            vector = [64 * random.randint(1, 64) for _ in OPERATORS[name].features]
            if name == "all_reduce":
                vector = [1 << random.randint(16, 26), 4, 2]
            flops = OPERATORS[name].flops(direction, tuple(vector))
            moved = OPERATORS[name].moved_bytes(direction, tuple(vector), 2)
            time_us = (
                fast
                * (5 + flops / 4e8 + moved / (2e4 if name == "all_reduce" else 1.5e6))
                * random.uniform(0.9, 1.1)
            )
            time_us *= random.choice([300.0, 0.01]) if row % 7 == 3 else 1.0
            at = f"2026-0{1 + row % 3}-0{1 + seed}T08:00:00Z"
            fields: dict[str, Any] = {"run_id": run_id, "operator": name, "direction": direction, "dtype": DTYPE,
                                      "vector": tuple(vector), "measured_at": at}  # fmt: skip
            if row % 11 == 5:
                yield Sample.without_time(status="failed", reason="out of\n memory", **fields)
            elif row % 5 == 0:
                kernels = tuple(Kernel(f"k{one}", one, time_us / 3, 7) for one in range(2))
                repetitions = [Repetition(index=one, time_us=time_us * random.uniform(1, 1.2), start_us=9.0 * one,
                                          kernels=kernels) for one in range(10)]  # fmt: skip
                flags = [("throttled", "at 60 °C")] if row % 2 else []
                yield Sample.from_repetitions(
                    repetitions=repetitions, flags=flags, load=Load.BURST, clock_mhz=1410.0, **fields
                )
            else:
                yield Sample(time_us=time_us, statistic="mean", role="up" if row % 2 else "", **fields)


def drawn_run(
    seed: int, *, longer: float = 1.0, marked: bool = True, known_waits: bool = True
) -> MeasuredRun:
    source = Source(kind="trace", name=f"job {seed % 4}", licence="CC0", reference="https://example.org")
    software = TORCHES[seed % 2]
    run = Run(
        started_at=f"2026-02-0{1 + seed}T08:15:00Z", kernelcast_version="0.1.0", command="ingest", site="Example",
        compute_id=H100.digest, fabric_id=NODE.digest, software_id=software.digest, note=f"run {longer}",
        conditions={"longer": longer, "seed": seed}, source=source,
    )  # fmt: skip
    traces, timelines = [], []
    ranks = 2 + seed % 3
    for rank in range(ranks):
        trace = IngestedTrace(
            run_id=run.id, file_digest=f"{rank:064x}", rank=rank, world_size=ranks, backend="nccl", span_us=9e3,
            process_groups=({"name": "0", "size": ranks, "ranks": list(range(ranks))},), event_count=50,
            kernel_count=40, kernel_us=5e3, attributed_count=30, attributed_us=4e3, recognised_count=20,
            recognised_us=3e3, measured_at=run.started_at,
        )  # fmt: skip
        left = UnrecognisedKernels(trace_id=trace.id, name="adam", category="kernel", stream=7, kernel_count=3,
                                   reason="no operator for it", total_us=40.0)  # fmt: skip
        traces.append((trace, [left]))
        timelines.append(
            timeline(trace.id, rank, ranks, seed, longer=longer, marked=marked, known_waits=known_waits)
        )
    return MeasuredRun(
        run=run, compute=H100, fabric=NODE, software=software, samples=list(samples(run.id, seed)),
        traces=traces, timelines=timelines,
    )  # fmt: skip


RUNS = [drawn_run(0), drawn_run(0, longer=1.3), drawn_run(1), drawn_run(2, marked=False),
        drawn_run(3, known_waits=False), *map(drawn_run, (4, 5, 7, 8))]  # fmt: skip


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    path = tmp_path_factory.mktemp("drawn") / "drawn.db"
    with Database.open(path, create=True) as opened:
        opened.add_runs(RUNS)
        for place, run in enumerate(RUNS[:3]):
            step = MeasuredStep.from_repetitions(
                repetitions_s=[0.7, 0.6 + place, 0.65, 0.9], run_id=run.run.id, model={"name": "m"}, pp=1, tp=1, dp=2,
                micro_batch=4, micro_batches=8, schedule="1F1B", recomputation=False, dtype=DTYPE,
                measured_at=run.run.started_at,
            )  # fmt: skip
            opened.add(step)
            opened.add(Prediction(step_id=step.id, bundle_digest="b" * 64, timeline="schedule", statistic="quiet_us",
                                  predicted_s=0.66, low_s=0.5, high_s=0.8))  # fmt: skip
        yield opened


def short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {name: short(one) for name, one in value.items()}
    return [short(one) for one in value] if isinstance(value, list | tuple) else value


def row_lines(name: str, rows: Any) -> Iterator[str]:
    """A table's columns, then a line per row."""
    listed = [short(one if isinstance(one, dict) else asdict(one)) for one in rows]
    yield f"{name}: {' '.join(listed[0]) if listed else 'none'}"
    yield from ("  " + " | ".join("" if one is None else str(one) for one in row.values()) for row in listed)


def of_reports(database: Database) -> Iterator[str]:
    for place, measured in enumerate(RUNS):
        report = trace_report(database, measured.run.id, top=(40, 6)[place % 2])
        yield f"*** run {place}: {report.hardware}; {report.software}; {short(report.parts_ms)}"
        for name in report.__slots__:
            if name not in ("run_id", "hardware", "software"):
                yield from row_lines(name, getattr(report, name))


def of_differences(database: Database, folder: Path) -> Iterator[str]:
    for one, two in ((0, 1), (1, 0), (2, 6), (3, 2), (4, 4)):
        found = compare_traces(database, RUNS[one].run.id, database, RUNS[two].run.id)
        yield f"*** runs {one} and {two}: {found.one_steps} and {found.two_steps} steps; {short(asdict(found.step))}"
        for name in ("parts", "kernels", "operators", "modules", "causes"):
            yield from row_lines(name, getattr(found, name))
            yield " ".join(one.kind for one in getattr(found, name))
        if one == 0:
            write_difference_page(found, "A", "B", folder / "difference.html", notes=["a note"])
            yield from of_page((folder / "difference.html").read_text())


def of_page(page: str) -> Iterator[str]:
    text = re.sub(r"<(style|script)\b.*?</\1>|sha256-[\w+/=]*", "", page, flags=re.DOTALL)
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", text)
    yield from text.replace("><", ">\n<").splitlines()


def of_pages(database: Database) -> Iterator[str]:
    for place in (2, 3):
        report = trace_report(database, RUNS[place].run.id, top=3)
        yield f"*** page of run {place}"
        page = of_page(trace_page(database, report, notes=["one <b>", "two"]))
        yield from (line for line in page if place == 2 or line.startswith(("<text", "<desc", "<dd")))


def of_traces(database: Database, folder: Path) -> Iterator[str]:
    for place, rank, step in ((2, 1, "5"), (3, 0, "")):
        count = write_trace(database, RUNS[place].run.id, folder / "trace.json", rank=rank, step=step)
        text = (folder / "trace.json").read_text()
        assert len(json.loads(text)["traceEvents"]) == count
        yield f"*** trace of run {place}: {count} events"
        yield from text.splitlines()[:90]


def of_exports(database: Database, folder: Path) -> Iterator[str]:
    database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    subsets = [{"operators": ["gemm"]}, {"since": "2026-02-03"}, {"until": "2026-02-02", "anonymous": True},
               {"hardware": H100.digest[:6], "since": "2026-03-01T00:00:00Z"}, {},
               {"operators": ["gelu"], "until": "2026-02-01"}]  # fmt: skip
    for place, fields in enumerate(subsets):
        target = folder / f"{place}.db"
        found = export_database(database.path, target, Subset(**fields))
        yield f"*** export of {fields}: {dict(found.rows)} {found.texts}"
        difference = diff_databases(target, database.path)
        yield f"lacks { ({name: count for name, count in difference.only_in_b.items() if count}) }"
        yield from row_lines("new", difference.new_fingerprints)
        yield from row_lines("stale", difference.stale)
        assert not any(difference.only_in_a.values())
        assert check_database(target) == []
    yield from row_lines("doubts", doubtful_samples(database))


def test_drawn_runs(database: Database, tmp_path: Path) -> None:
    lines = [*of_reports(database), *of_differences(database, tmp_path), *of_pages(database),
             *of_traces(database, tmp_path), *of_exports(database, tmp_path)]  # fmt: skip
    printed = re.sub(r"\b[0-9a-f]{12,64}\b", "#", "\n".join(lines)) + "\n"
    if "WRITE_DRAWN_RUNS" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")
