"""How much one request may ask for, and how many are taken at once."""

import os
from dataclasses import dataclass


def usual_workers() -> int:
    """Threads that compute: one per core of this process, at most 4 (much of their work takes turns)."""
    return min(4, len(os.sched_getaffinity(0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the server takes.

    - `max_body_bytes` of one request, which must have come within `body_s`.
    - `max_search_layouts` that a search may have to look at.
    - `time_s`: a request that waited so long is turned away, a search that took so long ends.
    - `workers` threads compute, and one more searches; `waiting` requests for each of the two wait for their turn,
      and what comes beyond is turned away.
    - `connections` that are open at once; the head of a request must come within `head_s`.
    - A layout of more than `small_chunks` pieces (pp · virtual stages) is computed apart from the others, and one of
      more than `most_chunks` is refused: time and answer (10 kB a piece) grow with them.
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
