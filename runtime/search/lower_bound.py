"""A lower bound of the simulated step from passes and shards alone: few columns decide it, so it costs little."""

import numpy as np

from kernelcast.runtime.estimate.configurations import Rows, Times
from kernelcast.runtime.estimate.engine import Engine
from kernelcast.runtime.estimate.pricing import EXPOSED, EXPOSED_IN_LAYERS, SHARDS, Kind, Part, Prices, What
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.chunk_times import sum_of
from kernelcast.runtime.step.chunks import kinds_of
from kernelcast.runtime.step.decomposition import FIRST, LAST, layer_name
from kernelcast.runtime.step.layouts import SCHEDULES, Layouts


def least_us(engine: Engine, layouts: Layouts, *, in_full: bool = False) -> Times:
    """A lower bound of the simulated step, float64 [layouts]; NaN without an answer. Of an engine without draws.

    It is larger `in_full`, with the ends of the model and what ZeRO-2 or 3 sends in every pass.

    Stages share the work W of a micro-batch, and no overlap shortens it, so one of them has W / pp of it or more.
    In 1F1B and GPipe, stage s waits for the first and last passes of the stages before it: the step is
    T ≥ Σ_{j<s} w_j + m · w_s for every s, and the shortest where all are equal, T = W / (1 − (1 − 1/m)^pp).
    """
    if not len(layouts):
        return np.zeros(0)
    model, are_sharded = engine.model, layouts.are_sharded
    sharded = layouts.take(are_sharded)
    piece = EXPOSED if in_full else EXPOSED_IN_LAYERS
    requests = [(layouts, (piece,)), *([(sharded, (SHARDS,))] if in_full and len(sharded) else [])]
    prices, *of_shards = engine.prices.price(requests)
    rows = np.arange(len(layouts))
    forward_us, backward_us = (
        _of(model, piece, prices, what, rows) for what in (What.FORWARD, What.BACKWARD)
    )
    work_us = forward_us + backward_us
    for shards in of_shards:
        passes = forward_us[are_sharded], backward_us[are_sharded]
        work_us[are_sharded] = _sharded_us(model, sharded, shards, *passes)
    pp, micro_batches = layouts["pp"], layouts["micro_batches"].astype(np.float64)
    in_turn = np.isin(layouts["schedule"], [SCHEDULES.index(one) for one in ("1f1b", "gpipe")])
    stages = np.where(in_turn, micro_batches * (1 - (1 - 1 / micro_batches) ** pp), pp)
    # Sums in another order, and the grid of a simulation, may differ by this much.
    return (1 - 1e-9) * micro_batches * work_us / stages


def _of(model: ModelConfig, piece: Kind, prices: Prices, what: What, rows: Rows) -> Times:
    """One work of all of a model's blocks, [rows]."""
    counts = kinds_of(model).counts(0, model.layers)
    blocks = [(FIRST, 1), (LAST, 1), *((layer_name(kind), count) for kind, count in enumerate(counts))]
    return sum_of([count * prices.of(piece, Part(name, what), rows) for name, count in blocks])


def _sharded_us(
    model: ModelConfig, layouts: Layouts, shards: Prices, forward_us: Times, backward_us: Times
) -> Times:
    """A lower bound of the work of a micro-batch with ZeRO-2 or 3, whose passes compute for these times, [layouts].

    A chunk's pass takes f + Σ max(c + e · n, n + l) + g (`chunk_times`), where f, g and all n are what it sends: no
    less than all of that, and no less than what it computes, with e of all that it sends and the other 1 − e of f and
    g. Chunks without an end of the model begin and end with a layer.
    """
    rows, kinds = np.arange(len(layouts)), range(len(kinds_of(model).distinct))
    inner, share = np.maximum(0, layouts["pp"] * layouts["virtual_stages"] - 2), layouts.like.exposed_share
    gather_us, scatter_us = (_of(model, SHARDS, shards, what, rows) for what in (What.GATHER, What.SCATTER))
    of_layer = {
        what: np.min([shards.of(SHARDS, Part(layer_name(kind), what), rows) for kind in kinds], axis=0)
        for what in (What.GATHER, What.SCATTER)
    }
    passes = (
        (forward_us, gather_us, of_layer[What.GATHER]),
        (backward_us, gather_us + scatter_us, of_layer[What.GATHER] + of_layer[What.SCATTER]),
    )
    return sum_of(
        [
            np.maximum(computed_us + share * sent_us + (1 - share) * inner * ends_us, sent_us)
            for computed_us, sent_us, ends_us in passes
        ]
    )
