"""From which value on a rank or a link is named, and with another cause: `rank_thresholds.txt`.

WRITE_RANK_THRESHOLDS=1 pytest THIS_FILE writes it again. Ranks do the same but for one number, which is searched.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelcast.store import (
    Database,
    EventKind,
    IngestedTrace,
    MeasuredRun,
    Run,
    Timeline,
    TracedEvent,
    TracedStep,
)
from kernelcast.store.rank_causes import rank_findings
from kernelcast.store.runs import HostTime, MatchedCollective, TraceClock
from kernelcast.store.trace_sums import summed_events
from tests.store.test_drawn_runs import H100, NODE, TORCHES

TEXT = Path(__file__).with_name("rank_thresholds.txt")
LATE = {0: 2, 1: 2, 2: 2, 3: 2, 4: 1, 5: 1, 6: 3, 7: 3}
"""The rank that comes last to each collective: rank 2 by `late`, others by `others_late`, in ns."""
USUAL: dict[str, Any] = {
    "late": 400_000, "others_late": 20_000, "spacing": 5_000_000, "host": 0, "memory": 0, "compute": 0, "loader": 0,
    "factor": 1.0, "of_b": 1.0, "launches": 4, "link": 1.0, "waits": 0,
}  # fmt: skip


def kind(name: str, **more: Any) -> EventKind:
    return EventKind(name=name, category="kernel", class_=more.pop("class_", "compute"), **more)


def reduce(rank: int, of_pairs: bool) -> EventKind:
    members = [0, 1, 2, 3] if not of_pairs else [rank // 2 * 2, rank // 2 * 2 + 1]
    return kind("nccl", class_="communication", collective="allreduce", group_ranks=str(members),
                group_size=len(members), message_bytes=1 << 20)  # fmt: skip


def timeline(trace_id: str, rank: int, of: dict[str, Any], *, of_pairs: bool) -> Timeline:
    events, matched, is_slow = [], [], rank == 2
    for number, late_rank in LATE.items():
        late_ns = of["late"] if late_rank == 2 else of["others_late"]
        late_ns = 0 if of_pairs else late_ns + (of["waits"] if late_rank != 2 else 0)
        begin_ns, transfer_ns = (number + 1) * of["spacing"], 50_000
        if of_pairs and rank >= 2:
            transfer_ns = int(transfer_ns * of["link"])
        own_ns = late_ns if late_rank == rank else 0
        duration_ns = transfer_ns + late_ns - own_ns
        start_ns = begin_ns + own_ns
        extra = [of[part] if is_slow and late_rank == 2 else 0 for part in ("compute", "memory", "host")]
        of_group = 10 * number + (rank // 2 if of_pairs else 0)
        matched.append(MatchedCollective(len(events), of_group, *extra))
        events.append(
            TracedEvent(reduce(rank, of_pairs), start_ns, duration_ns, duration_ns, 0, 0, 0, 20, 0, None)
        )
    for place in range(of["launches"] if is_slow else 4):
        for name, factor in (("a", of["factor"]), ("b", of["of_b"])):
            duration_ns = int(100_000 * (factor if is_slow else 1.0))
            events.append(TracedEvent(kind(name), 100 * place, duration_ns, duration_ns, 0, 0, 0, 7, 0, None))
    loader = HostTime(0, "annotation", "DataLoader", 1, of["loader"] if is_slow else 0, 0)
    return Timeline(
        trace_id,
        (TracedStep("s#1", 0, 10**8),),
        tuple(events),
        TraceClock(0, 0.0, 0),
        matched,
        host=(loader,),
    )


def found(path: Path, *, of_pairs: bool = False, **changes: Any) -> str:
    run = Run(
        started_at="2026-01-01T00:00:00Z", command="ingest", compute_id=H100.digest, software_id=TORCHES[0].digest,
        fabric_id=NODE.digest, conditions={"at": str(sorted(changes.items())), "pairs": of_pairs},
    )  # fmt: skip
    traces, timelines = [], []
    for rank in range(4):
        trace = IngestedTrace(
            run_id=run.id, file_digest=f"{rank:064x}", rank=rank, span_us=9e4, event_count=1, kernel_count=1,
            kernel_us=1.0, attributed_count=0, attributed_us=0.0, recognised_count=0, recognised_us=0.0,
        )  # fmt: skip
        traces.append((trace, ()))
        timelines.append(timeline(trace.id, rank, USUAL | changes, of_pairs=of_pairs))
    measured = MeasuredRun(
        run=run, compute=H100, fabric=NODE, software=TORCHES[0], traces=traces, timelines=timelines
    )
    with Database.open(path, create=True) as database:
        database.add_runs([measured])
        with summed_events(database, run.id):
            named = rank_findings(database, run.id)
    return (
        " and ".join(f"{one.kind} {one.group_ranks if one.rank is None else one.rank}" for one in named)
        or "nothing"
    )


def threshold(path: Path, name: str, low: float, high: float, **others: Any) -> Iterator[str]:
    """What is said at both ends, and at which value it changes, to a 32nd of the range."""
    whole = isinstance(low, int)
    ends = [found(path, **{name: value}, **others) for value in (low, high)]
    first, last = float(low), float(high)
    while last - first > (high - low) / 32:
        middle = (first + last) / 2
        if found(path, **{name: round(middle) if whole else middle}, **others) == ends[0]:
            first = middle
        else:
            last = middle
    yield f"{name} {others}: {ends[0]} at {low:,}, {ends[1]} at {high:,}, from {last:,.4g} on"


def lines(path: Path) -> Iterator[str]:
    yield from threshold(path, "late", 10_000, 200_000, others_late=100_000, host=10**6, spacing=10**6)
    yield from threshold(path, "late", 0, 400_000, others_late=0, host=10**6)
    yield from threshold(path, "host", 0, 400_000)
    yield from threshold(path, "memory", 0, 400_000)
    yield from threshold(path, "memory", 0, 800_000, host=400_000)
    yield from threshold(path, "loader", 0, 3_200_000, host=400_000)
    yield from threshold(path, "of_b", 1.0, 2.0, factor=2.0, compute=400_000)
    yield from threshold(path, "factor", 1.0, 3.0, compute=400_000, launches=8)
    yield from threshold(path, "link", 1.0, 2.0, of_pairs=True, spacing=200_000)
    yield from threshold(path, "waits", 0, 1_600_000)


def test_rank_thresholds(tmp_path: Path) -> None:
    printed = "\n".join(lines(tmp_path / "a.db")) + "\n"
    if "WRITE_RANK_THRESHOLDS" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")
