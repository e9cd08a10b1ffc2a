"""The processes of a collection as one: what they agree on, the groups they form, and how they part."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from kernelcast.collector.communication.collectives import Members
from kernelcast.collector.communication.layouts import Layout
from kernelcast.collector.communication.watchdog import Watchdog
from kernelcast.collector.communication.world import World
from kernelcast.collector.measuring.gloo_threads import calm_gloo
from kernelcast.runtime.errors import DataError

T = TypeVar("T")

# Later than the watchdog's end, whose message is one line and not a stack of frames.
_TORCH_EXTRA_S = 60.0


class LostPeersError(DataError):
    """Other processes ended or cannot be reached; the reason lies with them."""


class FirstFailedError(LostPeersError):
    """Process 0 could not begin, and says why itself."""


class FailedAloneError(DataError):
    """This process failed where the others wait for it, and cannot be told: it says why and ends, and so do they."""


class Peers:
    """All processes. What they agree on travels over gloo, which needs no memory of a GPU's; made by `joined`."""

    def __init__(self, world: World, place: torch.device, watchdog: Watchdog) -> None:
        self.world, self.place = world, place
        self._watchdog = watchdog
        self._control = dist.new_group(backend="gloo") if dist.get_backend() != "gloo" else dist.group.WORLD
        self._handles: dict[tuple[int, ...], dist.ProcessGroup | None] = {}

    @property
    def interrupted(self) -> bool:
        """Whether this process was told to end."""
        return self._watchdog.interrupted

    def barrier(self) -> None:
        """Wait until all are here.

        Raises:
            LostPeersError: one of them is gone.
        """
        with _losses(self.place):
            dist.barrier(group=self._control)
        self._watchdog.heard()

    def gather(self, value: T) -> list[T]:
        """Every process's value, on every process, in order of rank.

        Raises:
            LostPeersError: one of them is gone.
        """
        found: list[T | None] = [None] * self.world.size
        with _losses(self.place):
            dist.all_gather_object(found, value, group=self._control)
        self._watchdog.heard()
        return found  # type: ignore[return-value]

    def from_first(self, value: T) -> T:
        """What process 0 holds, on every process.

        Raises:
            LostPeersError: one of them is gone.
        """
        box = [value]
        with _losses(self.place):
            dist.broadcast_object_list(box, src=0, group=self._control)
        self._watchdog.heard()
        return box[0]

    def members(self, layout: Layout) -> Members | None:
        """The group of a layout that this process is in, None where it is in none; every process must ask."""
        own: Members | None = None
        with _losses(self.place):
            for ranks in layout.groups:
                handle = self._handle(ranks)
                if self.world.rank in ranks:
                    own = Members(ranks=ranks, handle=handle)
        self._watchdog.heard()
        return own

    def _handle(self, ranks: Sequence[int]) -> "dist.ProcessGroup | None":
        ranks = tuple(ranks)
        if ranks == tuple(range(self.world.size)):
            return dist.group.WORLD
        if ranks not in self._handles:
            # All processes make all groups, in the same order: torch asks for it.
            self._handles[ranks] = dist.new_group(list(ranks))
            calm_gloo()
        return self._handles[ranks]


@contextmanager
def joined(world: World, place: torch.device, *, timeout_s: float, watchdog: Watchdog) -> Iterator[Peers]:
    """Join the other processes, and part from them when all are done.

    Raises:
        LostPeersError: they cannot be reached, or one of them is gone.
    """
    backend = "nccl" if place.type == "cuda" else "gloo"
    # The watchdog ends this process `timeout_s` after it last heard of the others.
    with _losses(place):
        dist.init_process_group(
            backend,
            init_method=world.init_method,
            rank=world.rank,
            world_size=world.size,
            timeout=timedelta(seconds=timeout_s + _TORCH_EXTRA_S),
        )
    calm_gloo()
    watchdog.heard()
    try:
        peers = Peers(world, place, watchdog)
        yield peers
        # Nobody closes its connections while others still read from them: gloo's threads end the process then.
        peers.barrier()
        peers.barrier()
    except BaseException:
        # What went wrong first is what counts.
        with suppress(RuntimeError, ValueError):
            dist.destroy_process_group()
        raise
    with _losses(place):
        dist.destroy_process_group()


@contextmanager
def _losses(place: torch.device) -> Iterator[None]:
    """Whatever goes wrong among the processes is one line: all of them see it, few are its cause."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # gloo's messages begin with the place in its source: `[…/pair.cc:534] Connection closed by peer […]`.
        reason = lines[0].rpartition("] ")[2] if lines and lines[0].startswith("[") else "".join(lines[:1])
        backend = "nccl" if place.type == "cuda" else "gloo"
        raise LostPeersError(
            f"collect comm: another process ended or cannot be reached ({backend}: {reason or 'no reason given'}); "
            "what was measured is stored"
        ) from error
