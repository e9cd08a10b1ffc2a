"""Limits of one request, and of concurrent requests."""

import os
from dataclasses import dataclass


def usual_workers() -> int:
    """Threads that compute: one per core of this process, at most 4 (much of their work takes turns)."""
    return min(4, len(os.sched_getaffinity(0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the server.

    - `max_body_bytes` of one request, which must arrive within `body_s`, or later at 16 KiB/s or more.
    - `max_search_layouts` that a search may evaluate.
    - `time_s`: a request that waits longer is refused, a search that takes longer ends.
    - `workers` threads compute, and one more searches; up to `waiting` requests queue for each of the two, and
      further ones are refused.
    - `connections` that are open at once; the head of a request must arrive within `head_s`.
    - A layout of more than `small_chunks` chunks (pp · virtual stages) is computed in a pool of its own, and a layout
      of more than `most_chunks` is refused: time and answer (10 kB a chunk) grow with them.
    - `answer_bytes` of answers that clients have not read yet.
    """

    max_body_bytes: int = 1 << 20
    body_s: float = 10.0
    max_search_layouts: int = 200_000
    time_s: float = 30.0
    workers: int = 2
    waiting: int = 128
    connections: int = 256
    head_s: float = 10.0
    small_chunks: int = 128
    most_chunks: int = 1024
    answer_bytes: int = 128 << 20
