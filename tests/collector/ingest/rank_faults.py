"""Faults put into made-up runs of several ranks, and what the report finds: the table of docs/trace-figures.md.

    python -m tests.collector.ingest.rank_faults

Wanted is the cause, the rank (or group) and the delay per step within 15 %.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kernelcast.collector.ingest.open_traces import opened_traces
from kernelcast.docs.markdown import table
from kernelcast.store.rank_causes import RankFinding
from kernelcast.store.trace_report import trace_report, traced_runs
from tests.collector.ingest.rank_traces import KERNELS, MadeRun

WITHIN = 0.15
_LAYER_US = sum(usual_us for _, usual_us in KERNELS)
_PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))


@dataclass(frozen=True)
class Fault:
    """A run with a known fault; `kind` is empty where there is none to find. ms per step."""

    name: str
    run: MadeRun
    kind: str = ""
    rank: int | None = None
    delay_ms: float = 0.0

    def found(self) -> tuple[RankFinding, ...]:
        """What the report names."""
        with TemporaryDirectory() as name, opened_traces([self.run.write(Path(name, "ranks"))]) as database:
            [run_id] = traced_runs(database)
            return trace_report(database, run_id).findings

    def is_right(self, found: tuple[RankFinding, ...]) -> bool:
        """Whether the cause, the rank and the delay agree, and nothing else is named."""
        if not self.kind:
            return not found
        return (
            len(found) == 1
            and (found[0].kind, found[0].rank) == (self.kind, self.rank)
            and abs(found[0].delay_ms - self.delay_ms) <= WITHIN * self.delay_ms
        )


def faults() -> Iterator[Fault]:
    """Every kind of fault on 2 to 16 ranks, on one host and on several."""
    layers = 3
    for ranks, slow in ((2, 1), (8, 5), (16, 11)):
        yield Fault(f"none, {ranks} ranks", MadeRun(ranks=ranks))
        for factor in (1.05, 1.3):
            yield Fault(
                f"all kernels {factor} ×, {ranks} ranks", MadeRun(ranks=ranks, kernel_factor={slow: factor}),
                "slow_device", slow, layers * _LAYER_US * (factor - 1) / 1e3)  # fmt: skip
        yield Fault(
            f"attention 2 ×, {ranks} ranks", MadeRun(ranks=ranks, attention_factor={slow: 2.0}),
            "slow_kernels", slow, layers * 0.5)  # fmt: skip
        yield Fault(
            f"kernels twice as often, {ranks} ranks", MadeRun(ranks=ranks, extra_kernels={slow: 1}),
            "more_work", slow, layers * (_LAYER_US + 4) / 1e3)  # fmt: skip
        yield Fault(
            f"data loader +2 ms, {ranks} ranks", MadeRun(ranks=ranks, loader_us={slow: 2000.0}),
            "data_loader", slow, 2.0)  # fmt: skip
        yield Fault(
            f"host +0.4 ms a layer, {ranks} ranks", MadeRun(ranks=ranks, host_us={slow: 400.0}),
            "slow_host", slow, layers * 0.4)  # fmt: skip
        yield Fault(
            f"copies +1 ms, {ranks} ranks", MadeRun(ranks=ranks, copy_us={slow: 1000.0}), "copies", slow, 1.0
        )
    apart = {"per_host": 4, "offset_us": {1: 7300.0}, "drift": {1: 4e-5}}
    yield Fault("none, two hosts with clocks 7.3 ms apart", MadeRun(**apart))
    yield Fault(
        "all kernels 1.2 ×, two hosts with clocks 7.3 ms apart", MadeRun(kernel_factor={6: 1.2}, **apart),
        "slow_device", 6, layers * _LAYER_US * 0.2 / 1e3)  # fmt: skip
    lost = {"has_numbers": False, "has_groups": False, "late_recording": {3: 2}}
    yield Fault(
        "data loader +2 ms, no numbers or groups, a rank without its first two", MadeRun(loader_us={5: 2000.0}, **lost),
        "data_loader", 5, 2.0)  # fmt: skip
    gone = 3, 5, 6  # of steps two and three
    for ranks, slow in ((2, 1), (8, 5)):
        yield Fault(
            f"data loader +2 ms, of three collectives its part is lost, {ranks} ranks",
            MadeRun(ranks=ranks, loader_us={slow: 2000.0}, lost={slow: gone}), "data_loader", slow, 2.0)  # fmt: skip
    yield Fault(
        "data loader +2 ms, of three collectives another part is lost",
        MadeRun(loader_us={5: 2000.0}, lost={0: gone}), "data_loader", 5, 2.0)  # fmt: skip
    yield Fault("none, of three collectives a part is lost", MadeRun(lost={5: gone}))
    transfer_ms = layers * (1 << 22) * 2 / 50e6
    yield Fault(
        "link of a pair 2 ×, 4 pairs",
        MadeRun(groups=_PAIRS, link_factor={(2, 3): 2.0}),
        "slow_link",
        None,
        transfer_ms,
    )
    yield Fault("none, 4 pairs", MadeRun(groups=_PAIRS))
    yield Fault(
        "all kernels 1.3 ×, 4 pairs", MadeRun(groups=_PAIRS, kernel_factor={5: 1.3}),
        "slow_device", 5, layers * _LAYER_US * 0.3 / 1e3)  # fmt: skip


def main() -> None:
    """Print the table."""
    rows = []
    for fault in faults():
        found = fault.found()
        first = found[0] if found else None
        rows.append((
            fault.name, fault.kind or "none", "" if fault.rank is None else str(fault.rank),
            f"{fault.delay_ms:.2f}" if fault.kind else "",
            first.kind if first else "none", "" if first is None or first.rank is None else str(first.rank),
            f"{first.delay_ms:.2f}" if first else "", "yes" if fault.is_right(found) else "no",
        ))  # fmt: skip
    right = sum(row[-1] == "yes" for row in rows)
    print(*table(("fault", "cause", "rank", "ms", "found", "rank", "ms", "right"), rows), sep="\n")
    print(f"\n{right} of {len(rows)} right: cause, rank, and time within {WITHIN:.0%}; nothing else named.")


if __name__ == "__main__":
    main()
