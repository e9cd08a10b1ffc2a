"""How ranks whose calls are drawn are matched: drawn_clocks.txt, which WRITE_DRAWN_CLOCKS=1 pytest THIS_FILE writes.

Clocks of hosts are apart and drift, recordings begin late or lack calls, with or without numbers.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

from kernelcast.collector.ingest.matching import CollectiveCall, RankCalls, matched

TEXT = Path(__file__).with_name("drawn_clocks.txt")


def ranks_of(drawn: Random) -> list[RankCalls]:
    count, calls = drawn.choice([2, 2, 3, 4]), drawn.choice([3, 9, 14, 40])
    hosts = drawn.choice([["a"] * 4, ["a", "b", "a", "b"], [None] * 4, ["a", "b", None, "c"]])
    ahead_ns = {
        host: drawn.choice([0, 0, 20_000, -70_000, 400_000, 3_000_000, -50_000_000])
        for host in ("a", "b", "c", None)
    }
    drift = {host: drawn.choice([0, 2e-5, -3e-6]) for host in ahead_ns}
    numbered, groups = drawn.choice([True, False]), drawn.choice([["tp"], ["tp", "dp"]])
    lost = drawn.choice([0.0, 0.0, 0.06])
    sizes, is_send = drawn.choice([[64], [64, 128], [64, 128, None]]), drawn.random() < 0.2
    steps, now_ns = [], 0
    for number in range(calls):
        lasting_ns = drawn.choice([100_000, 300_000, 2_000_000])
        now_ns += lasting_ns + drawn.choice([50_000, 400_000, 5_000_000])
        # Late by one rank, sometimes: the others wait.
        late = drawn.randrange(count), drawn.choice([0, 0, 1_500_000])
        now_ns += late[1]
        steps.append((number, drawn.choice(groups), drawn.choice(sizes), lasting_ns, now_ns, late))
    ranks = []
    for rank in range(count):
        host, own = hosts[rank], []
        begin = drawn.choice([0, 0, 1, 2])
        for number, group, size, lasting_ns, end_ns, (slow, waited_ns) in steps[begin:]:
            if drawn.random() < lost:
                continue
            end = round(end_ns * (1 + drift[host])) + ahead_ns[host] + drawn.choice([0, 1000, 4000])
            start = end - lasting_ns - (0 if rank == slow else waited_ns)
            name = "send" if is_send and group == "dp" else "all_reduce"
            own.append(
                CollectiveCall(
                    sequence=10 * len(own), group=(group, "[0]", count), name=name, size_bytes=size,
                    number=number if numbered else None, done_ns=(0, 0, 0), start_ns=start, end_ns=end,
                    is_synchronising=name != "send",
                )
            )  # fmt: skip
        start_ns = None if drawn.random() < 0.1 else 10**18 + drawn.choice([0, 0, 700])
        ranks.append(RankCalls(start_ns=start_ns, host=host, calls=own))
    return ranks


def runs() -> Iterator[str]:
    drawn = Random(11)
    for number in range(160):
        ranks = ranks_of(drawn)
        clocks, numbers, lost = matched(ranks)
        yield f"{number}: {[(rank.host, rank.start_ns is not None, len(rank.calls)) for rank in ranks]}"
        for clock, own, lacking in zip(clocks, numbers, lost, strict=True):
            told = f"{clock[0]} {clock[1]:.3e} {clock[2]}"
            parts = ", ".join(f"{one[0]} at {one[1]} for {one[2]}" for one in lacking)
            yield f"  {told} | {' '.join(f'{call // 10}→{match}' for call, match in own.items())} | {parts}".rstrip(
                " |"
            )


def test_how_drawn_ranks_are_matched() -> None:
    if "WRITE_DRAWN_CLOCKS" in os.environ:
        TEXT.write_text("\n".join(runs()) + "\n", encoding="utf-8")
    assert "\n".join(runs()) + "\n" == TEXT.read_text(encoding="utf-8")
