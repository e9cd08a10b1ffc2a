"""The processes of a collection: how they agree on values, form groups, and end together."""

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

# Later than the watchdog, whose message is one line and no stack trace.
_TORCH_EXTRA_S = 60.0


class LostPeersError(DataError):
    """Other processes ended or cannot be reached, for a reason that they report."""


class FirstFailedError(LostPeersError):
    """Process 0 could not start, and reports the reason itself."""


class FailedAloneError(DataError):
    """This process failed inside a collective, where the others cannot be told: it reports why and ends, as they do."""


class Peers:
    """All processes, made by `joined`. Values that they agree on travel over gloo, which needs no GPU memory.

    Methods that need the other processes raise LostPeersError where one of them is gone.
    """

    def __init__(self, world: World, place: torch.device, watchdog: Watchdog) -> None:
        self.world, self.place = world, place
        self._watchdog = watchdog
        self._control = dist.new_group(backend="gloo") if dist.get_backend() != "gloo" else dist.group.WORLD
        self._handles: dict[tuple[int, ...], dist.ProcessGroup | None] = {}

    @property
    def interrupted(self) -> bool:
        """Whether this process received a signal to end."""
        return self._watchdog.interrupted

    def barrier(self) -> None:
        """Wait for all processes."""
        with self._contact():
            dist.barrier(group=self._control)

    def gather(self, value: T) -> list[T]:
        """Every process's value, on every process, in order of rank."""
        found: list[T | None] = [None] * self.world.size
        with self._contact():
            dist.all_gather_object(found, value, group=self._control)
        return found  # type: ignore[return-value]

    def from_first(self, value: T) -> T:
        """Process 0's value, on every process."""
        box = [value]
        with self._contact():
            dist.broadcast_object_list(box, src=0, group=self._control)
        return box[0]

    def members(self, layout: Layout) -> Members | None:
        """This process's group in a layout, None where it is in none; every process must call this."""
        own: Members | None = None
        with self._contact():
            for ranks in layout.groups:
                handle = self._handle(ranks)
                if self.world.rank in ranks:
                    own = Members(ranks=ranks, handle=handle)
        return own

    @contextmanager
    def _contact(self) -> Iterator[None]:
        with _losses(self.place):
            yield
        self._watchdog.heard()

    def _handle(self, ranks: Sequence[int]) -> "dist.ProcessGroup | None":
        ranks = tuple(ranks)
        if ranks == tuple(range(self.world.size)):
            return dist.group.WORLD
        if ranks not in self._handles:
            # torch requires that all processes create all groups in the same order.
            self._handles[ranks] = dist.new_group(list(ranks))
            calm_gloo()
        return self._handles[ranks]


@contextmanager
def joined(world: World, place: torch.device, *, timeout_s: float, watchdog: Watchdog) -> Iterator[Peers]:
    """Join the other processes, and leave them when all are done; LostPeersError where one cannot be reached."""
    backend = "nccl" if place.type == "cuda" else "gloo"
    # The watchdog ends this process `timeout_s` after its last contact with the others.
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
        # No process may close its connections while others read from them: gloo's threads would end the process.
        peers.barrier()
        peers.barrier()
    except BaseException:
        # The first error is the one to report.
        with suppress(RuntimeError, ValueError):
            dist.destroy_process_group()
        raise
    with _losses(place):
        dist.destroy_process_group()


@contextmanager
def _losses(place: torch.device) -> Iterator[None]:
    """Turn an error of torch.distributed into one line: all processes get one, few of them are its cause."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # gloo's messages begin with the place in its source: `[…/pair.cc:534] Connection closed by peer […]`.
        reason = lines[0].rpartition("] ")[2] if lines and lines[0].startswith("[") else "".join(lines[:1])
        backend = "nccl" if place.type == "cuda" else "gloo"
        raise LostPeersError(
            f"collect comm: another process ended or cannot be reached ({backend}: {reason or 'no reason given'}); "
            "measured points are stored"
        ) from error
