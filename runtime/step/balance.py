"""Layers of each chunk so that the slowest is as short as possible: fewer where an end of the model computes too.

The ends are told as multiples of a layer's time, so that thousands of layouts are one array and no cut is enumerated.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

AS_SPLIT = -1
"""Instead of a number of layers: those that `layer_split` gives."""

# Layers of either end above those that take less than the level at which all chunks take as long: the most even cut has
# no end further from it. Of equals the first counts: few layers on the first stage, whose activations wait longest.
_NEAR = np.array([(0, 1), (0, 0), (1, 1), (1, 0)])


def with_ends(layers: int, chunks: int, first: int, last: int) -> tuple[int, ...]:
    """Layers of each chunk with these on the first and last; between them the remainder goes to the latest.

    Later stages keep fewer micro-batches, so a layer more takes less memory there.

    >>> with_ends(32, 5, 6, 4)
    (6, 7, 7, 8, 4)
    """
    even, remainder = divmod(layers - first - last, max(1, chunks - 2))
    between = tuple(even + (chunk >= chunks - 2 - remainder) for chunk in range(chunks - 2))
    return (first, *between, last)


def balanced_ends(layers: int, chunks: int, first: Floats, last: Floats) -> tuple[Whole, Whole, Floats]:
    """Layers of the first and of the last of `chunks` (2 or more), int64 [rows] each, and what the slowest chunk takes.

    `first` and `last` are the times of the model's ends, and the last value is the time of a chunk, float64 [rows],
    all as multiples of a layer's. With the chunks between cut by `with_ends`, no other cut has a shorter slowest chunk;
    of those as short, it is the most even one. Every chunk between has a layer.
    """
    inner = chunks - 2
    ends = np.stack([first, last])[:, None, :]
    level = _level(layers, inner, ends[:, 0])
    # [ends, candidates, rows]
    counts = np.floor(np.maximum(level - ends, 0)) + _NEAR.T[:, :, None]
    if not inner:
        counts[1] = layers - counts[0]
    rest = layers - counts.sum(axis=0)
    valid = (counts >= 0).all(axis=0) & (rest >= inner)
    times = counts + ends
    slowest = times.max(axis=0)
    spread = (times**2).sum(axis=0)
    if inner:
        even = np.floor(rest / inner)
        more = rest - inner * even
        slowest = np.maximum(slowest, even + (more > 0))
        spread = spread + inner * even**2 + more * (2 * even + 1)
    # The most even cut has the shortest slowest chunk: a layer moved to a chunk that takes less makes both better.
    best = np.where(valid, spread, np.inf).argmin(axis=0)
    rows = np.arange(counts.shape[2])
    chosen = counts[:, best, rows].astype(np.int64)
    return chosen[0], chosen[1], slowest[best, rows]


def _level(layers: int, inner: int, ends: Floats) -> Floats:
    """What every chunk takes where layers can be cut, float64 [rows]; an end that takes longer alone has no layers.

    Where both ends take longer, they are above this level too, whatever the other chunks take.
    """
    a, z = ends
    both = (layers + a + z) / (inner + 2)
    only_a, only_z = (layers + a) / (inner + 1), (layers + z) / (inner + 1)
    found: Floats = np.where(z > both, only_a, np.where(a > both, only_z, both))
    return found
