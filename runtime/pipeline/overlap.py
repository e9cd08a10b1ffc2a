"""Data-parallel collectives overlapped with a pass, in buckets (docs/timeline.md, Data-parallel collectives)."""

from typing import Self

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass, fields

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Effect of overlapped collectives on the first and the last passes of an update.

    Arrays [configs, chunks], in µs: `first_us` is added to the first forward pass of a chunk, `last_us` to the pass
    that completes its gradients. Arrays [configs, stages]: `buckets` is the number of pieces per chunk in which its
    gradients are reduced, `link_us` the time in which the completing pass uses the same links itself.
    """

    first_us: Times
    last_us: Times
    buckets: Times
    link_us: Times

    def take(self, rows: slice | NDArray[np.intp] | NDArray[np.bool_]) -> Self:
        """Some of the configurations."""
        return type(self)(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})


def slowed_us(
    pass_us: Times, network_us: Times, buckets: Times, exposed_share: float, link_us: Times
) -> Times:
    """Time in µs added to a pass that overlaps with `buckets` pieces of a collective.

    One bucket in n runs before or after the pass, the others overlap with it, except for the time `link_us` in which
    the pass uses the same links itself. Compute slows down by `exposed_share` of the overlapped time: next to a
    collective of a, a pass of d takes min(d + k · a, (d − k · l) / (1 − k)) with k = share · (n − 1) / n.
    """
    slower = exposed_share * (buckets - 1) / buckets
    longer: Times = np.minimum(slower * network_us, (pass_us - link_us) * slower / (1 - slower))
    return longer


def gathered_us(
    pass_us: Times, network_us: Times, buckets: Times, exposed_share: float, link_us: Times
) -> Times:
    """Time in µs added to a pass whose parameters arrive in `buckets` pieces while it runs.

    It starts when the first piece has arrived; then either it or the network is never idle, and one piece of the other
    is exposed: max(a / n + d, a + l · (n − 1) / n + d / n), with d as `slowed_us` makes it.
    """
    slowed = pass_us + slowed_us(pass_us, network_us, buckets, exposed_share, link_us)
    busy_us = network_us + waiting_us(link_us, buckets)
    whole: Times = np.maximum(network_us / buckets + slowed, busy_us + slowed / buckets)
    return whole - pass_us


def waiting_us(link_us: Times, buckets: Times) -> Times:
    """Time that overlapped pieces wait for the pass's own collectives on the same links; the exposed piece does not."""
    waits: Times = link_us * (buckets - 1) / buckets
    return waits


def gathered_together_us(
    pass_us: Times,
    send_us: Times,
    network_us: Times,
    buckets: Times,
    exposed_share: float,
    link_us: Times,
    stages: int,
) -> Times:
    """The same where all stages begin their gathers with the step, as interleaved schedules do; [configs, chunks].

    A stage gathers one chunk after the other (chunk c is on stage c mod `stages`), and the first micro-batch comes to a
    chunk `send_us` after its pass through the one before: until then its gathers hide.
    """
    longer, arrival_us = np.empty_like(pass_us), np.zeros(len(pass_us))
    for chunk in range(pass_us.shape[1]):
        own, whole, pieces, link = (of[:, chunk] for of in (pass_us, network_us, buckets, link_us))
        begin_us = chunk // stages * whole
        left_us = np.clip(begin_us + whole - np.maximum(arrival_us, begin_us), 0, whole)
        slowed = own + slowed_us(own, left_us, pieces, exposed_share, link)
        first_us, last_us = begin_us + whole / pieces, begin_us + whole
        last_us = last_us + np.where(left_us > 0, waiting_us(link, pieces), 0)
        end_us = np.maximum(np.maximum(arrival_us, first_us) + slowed, last_us + slowed / pieces)
        longer[:, chunk] = end_us - arrival_us - own
        arrival_us = end_us + send_us[:, chunk]
    return np.maximum(longer, 0.0)
