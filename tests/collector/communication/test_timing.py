"""What a collective took, from every process's own times: whose duration counts, how many blocks, who failed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernelcast.collector.communication import timing
from kernelcast.collector.communication.collectives import Collective, Members
from kernelcast.collector.communication.layouts import Layout
from kernelcast.collector.communication.timing import CommPoint, time_point, together
from kernelcast.collector.communication.world import World
from kernelcast.collector.measuring.harness import Effort
from kernelcast.collector.measuring.outcome import Untimed
from kernelcast.store import Kernel, Status

PAIR = Layout(nodes=1, per_node=2, groups=((0, 1),), processes_per_node=2)
EFFORT = Effort(warm_up_iterations=1, most_in_block=10, most_blocks=3, stable_within=-1.0, most_seconds=1e6)


class Peers:
    """This process and another, whose answers `theirs` makes from this one's."""

    place, world = torch.device("cpu"), World(rank=0, local_rank=0, size=2, local_size=2)

    def __init__(self, theirs: Callable[[Any], Any] = lambda own: own) -> None:
        self.theirs = theirs

    def gather(self, own: Any) -> list[Any]:
        return [own, self.theirs(own)]

    def members(self, layout: Layout) -> Members:
        return Members(ranks=layout.groups[0], handle=None)

    def from_first(self, own: Any) -> Any:
        return own

    def barrier(self) -> None: ...


def added(members: Members, own: torch.Tensor, other: torch.Tensor) -> None:
    own.add_(1)


@pytest.fixture(autouse=True)
def _calls(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"all_reduce": Collective(added), "point_to_point": Collective(added, is_message=True)}
    monkeypatch.setattr(timing, "COLLECTIVES", calls)


def asked(peers: Peers, operator: str = "all_reduce", effort: Effort = EFFORT) -> list[Any]:
    point = CommPoint(operator=operator, layout=PAIR, entries=4096)
    assert point.vector == (4096, 1, 2)
    return time_point(point, peers, torch.float32, effort)  # type: ignore[arg-type]


def lasting(time_us: float | None) -> Callable[[Any], Any]:
    """The other process's repetitions, in place of its own: each of one length, or none."""

    def theirs(own: Any) -> Any:
        if not isinstance(own, list):
            return own
        return [None if time_us is None else replace(one, time_us=time_us) for one in own]

    return theirs


def test_blocks_follow_until_it_is_stable_or_late() -> None:
    found = asked(Peers())
    assert [one.index for one in found] == list(range(30))
    assert all(one.time_us > 0 and one.kernels for one in found)
    assert len(asked(Peers(), effort=replace(EFFORT, most_seconds=-1.0))) == 10
    assert len(asked(Peers(), effort=replace(EFFORT, stable_within=1e9, most_spread=1e9))) == 10


def test_the_process_that_came_last_did_not_wait_and_a_message_ends_with_its_receiver() -> None:
    assert {one.time_us for one in asked(Peers(lasting(1e-3)))} == {1e-3}
    assert max(one.time_us for one in asked(Peers(lasting(1e9)))) < 1e9
    assert {one.time_us for one in asked(Peers(lasting(1e9)), "point_to_point")} == {1e9}
    assert all(one.time_us > 0 for one in asked(Peers(lasting(None))))
    with pytest.raises(Untimed, match=r"^no process's trace holds its kernels$"):
        asked(Peers(lasting(None)), "point_to_point")


def fails() -> None:
    raise ValueError("odd")


def test_a_failure_of_one_is_raised_on_all() -> None:
    with pytest.raises(Untimed, match=r"^ValueError: odd \(process 0\)$"):
        together(Peers(), fails)  # type: ignore[arg-type]
    said = Status.UNSUPPORTED, "x" * 500
    with pytest.raises(Untimed) as caught:
        together(Peers(lambda own: said), lambda: 1)  # type: ignore[arg-type]
    assert (caught.value.status, caught.value.reason) == (Status.UNSUPPORTED, "x" * 400 + " (process 1)")
    assert together(Peers(), lambda: 1) == 1  # type: ignore[arg-type]


def test_of_groups_the_slowest_counts_with_its_own_clock_and_kernels() -> None:
    """Two groups of two: the quicker of each did not wait, the later of both decides."""
    layout = Layout(nodes=1, per_node=2, groups=((0, 1), (2, 3)), processes_per_node=4)
    times_us = [[50, 90, 7], [40, 95, 9], [30, 99, 60], [35, 98, 61]]
    blocks: list[int] = []

    class Four(Peers):
        def gather(self, own: Any) -> list[Any]:
            if not isinstance(own, list):
                return [own] * 4
            blocks.append(len(own))
            return [
                [
                    replace(own[0], time_us=float(time), start_us=1000.0 * rank + n,
                            kernels=(Kernel(name=f"{rank}", stream=rank, start_us=0.0, duration_us=1.0),))
                    for n, time in enumerate(times)
                ]
                for rank, times in enumerate(times_us)
            ]  # fmt: skip

    point = CommPoint(operator="all_reduce", layout=layout, entries=64)
    found = time_point(point, Four(), torch.float32, EFFORT)  # type: ignore[arg-type]
    assert blocks == [10, 10, 10]
    assert [(one.index, one.time_us, one.start_us, one.kernels[0].name) for one in found] == [
        (n + 3 * block, time, start, name)
        for block in range(3)
        for n, (time, start, name) in enumerate([(40, 1000, "1"), (98, 3001, "3"), (60, 2002, "2")])
    ]
