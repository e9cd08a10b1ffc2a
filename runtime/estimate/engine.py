"""From layouts to the durations of their passes, transfers and updates: the one evaluator of `predict` and `search`.

Thousands of layouts share few pieces, because a piece depends on few of their columns: one layer's passes on tp,
micro_batch, sequence_parallel and recompute, say. `Decomposition` defines the pieces. All pieces of a block are priced
together: every regressor is evaluated once.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.estimate.configurations import Configurations, Rows, Structure, Times, structures
from kernelcast.runtime.estimate.passes import Cuts, HostShare, Passes, better_ends
from kernelcast.runtime.estimate.pricing import (
    MICRO_BATCH,
    ON_LINKS,
    SEND,
    SHARDS,
    UPDATE_PARTS,
    Kind,
    Part,
    Prices,
    Pricing,
    TimesOf,
    What,
    update_kind,
)
from kernelcast.runtime.pipeline.durations import Durations, Overlap
from kernelcast.runtime.request.layout import Cluster
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.chunk_times import BlockTimes, exposed_us, share_in_layer, sum_of
from kernelcast.runtime.step.chunks import AS_SPLIT, StageKind, chunks_of, kinds_of, partition, stage_kinds
from kernelcast.runtime.step.decomposition import FIRST, LAST, Decomposition, layer_name
from kernelcast.runtime.step.groups import shards_span_nodes
from kernelcast.runtime.step.layouts import OF_STAGES, Layouts

# Elements of one array [layouts, chunks]: a bound on a group's memory, whatever the number of stages.
_MAX_ELEMENTS = 1 << 17


class Engine:
    """Prices layouts of one model on one cluster, with a cache of their pieces. `times_of` answers questions: once with
    the predicted times, and `draws` times with random ones. `host_link_bytes_per_s` is the rate to a device's host;
    `element_bytes` of the operators' type. `parts` of the only layout, where they are known.
    """

    def __init__(
        self,
        model: ModelConfig,
        cluster: Cluster,
        bucket_entries: int,
        times_of: TimesOf,
        *,
        element_bytes: int,
        draws: int = 0,
        host_link_bytes_per_s: float | None = None,
        parts: Decomposition | None = None,
    ) -> None:
        self.model, self.cluster, self.bucket_entries, self.parts = model, cluster, bucket_entries, parts
        self.draws, self.element_bytes = draws, element_bytes
        self.host = HostShare(model, host_link_bytes_per_s, element_bytes=element_bytes, draws=draws)
        self.prices = Pricing(
            times_of, self._decompose, draws=draws, has_host=host_link_bytes_per_s is not None
        )

    def configurations(self, layouts: Layouts) -> Iterator[Configurations]:
        """A block of layouts in parts of one structure each, without those that need what has no answer."""
        found = [
            (structure, rows, self._cuts(layouts.take(rows), structure))
            for structure, rows in structures(layouts)
        ]
        requests: list[tuple[Layouts, Sequence[Kind]]] = [(layouts, (*_pass_kinds(layouts), SEND))]
        for _, rows, cuts in found:
            requests += [
                (layouts.take(rows[own]), [update_kind(stage) for stage in dict.fromkeys(stages)])
                for own, stages in zip(cuts.layouts, cuts.stages, strict=True)
            ]
        prices, *updates = self.prices.price(requests)
        passes_of = self._passes(layouts, prices, [(structure, rows) for structure, rows, _ in found])
        for structure, rows, cuts in found:
            own, updates = updates[: len(cuts.stages)], updates[len(cuts.stages) :]
            step = max(1, _MAX_ELEMENTS // (len(cuts.chunks[0]) * (1 + self.draws)))
            for first in range(0, len(rows), step):
                at = np.arange(first, min(first + step, len(rows)))
                passes = tuple(one.take(self._drawn(at), structure) for one in passes_of[structure])
                yield from self._group(layouts, structure, cuts, prices, passes, own, rows[at], at)

    def balanced(self, layouts: Layouts) -> Layouts:
        """The layouts with layers spread by time: fewer on a chunk that holds an end of the model. The even split stays
        where the slowest chunk is not shorter otherwise, or the gain is less than the longer update. Of an engine
        without draws.
        """
        is_cut = np.flatnonzero((layouts["pp"] > 1) & (layouts["pp"] <= self.model.layers))
        if not len(is_cut):
            return layouts
        own, layers = layouts.take(is_cut), self.model.layers
        # An update grows linearly with the layers, so two stages give the time that a layer adds.
        half, whole = (
            update_kind(StageKind(counts=self._middle(held), first=False, last=False))
            for held in (layers // 2, layers)
        )
        [prices] = self.prices.price([(own, (*_pass_kinds(own), half, whole))])
        ends = np.full((2, len(layouts)), AS_SPLIT, dtype=np.int64)
        found = [
            (structure, rows)
            for structure, rows in structures(own)
            if structure.pp * structure.virtual_stages <= layers
        ]
        passes = self._passes(own, prices, found)
        for structure, rows in found:
            half_us, whole_us = (
                sum_of([prices.of(kind, Part("", what), rows) for what in UPDATE_PARTS])
                for kind in (half, whole)
            )
            ends[:, is_cut[rows]] = better_ends(
                partition(layers, structure.pp, structure.virtual_stages),
                partial(self._whole_us, passes[structure][0], own),
                passes=own["micro_batches"][rows] - 1,
                # A stage has one more layer on each of its chunks, which lengthens each of their passes.
                update_us=(whole_us - half_us) / (layers - layers // 2),
            )
        return layouts.with_ends(ends, self.model.layers)

    def _middle(self, layers: int) -> tuple[int, ...]:
        """Layers of the most frequent kind alone, as in the middle of a model."""
        return (layers, *(0 for _ in kinds_of(self.model).distinct[1:]))

    def _whole_us(self, passes: Passes, layouts: Layouts, first: bool, layers: int, last: bool) -> Times:
        """Time of a chunk of `layers` layers: the model's first ones, its last ones, or layers in between."""
        kinds, recomputed = kinds_of(self.model), layouts.like.recompute_layers
        # Without full recomputation, layers that keep everything take the same time as the others.
        kept = max(0, layers - recomputed) if recomputed else 0
        if first or last:
            end = layers if first else self.model.layers
            return passes.whole_us(
                first, kinds.counts(end - layers, end), kinds.counts(end - kept, end), last
            )
        return passes.whole_us(first, self._middle(layers), self._middle(kept), last)

    def _cuts(self, layouts: Layouts, structure: Structure) -> Cuts:
        """The cuts of layouts of one structure."""
        distinct, whose = layouts.take(slice(0, 1)), np.zeros(len(layouts), dtype=np.intp)
        some = ("recompute",) if layouts.like.recompute_layers else ()
        if some or (layouts.ends != AS_SPLIT).any():
            distinct, whose = layouts.distinct("first_layers", "last_layers", *some)
        cut = [distinct.parallelism(row) for row in range(len(distinct))]
        chunks = [chunks_of(self.model, one) for one in cut]
        return Cuts(chunks, [stage_kinds(self.model, one) for one in cut], whose)

    def _group(
        self,
        layouts: Layouts,
        structure: Structure,
        cuts: Cuts,
        prices: Prices,
        passes_of: tuple[Passes, ...],
        updates: Sequence[Prices],
        rows: Rows,
        of_update: Rows,
    ) -> Iterator[Configurations]:
        """The layouts at `rows`, at positions `of_update` in their structure, with their passes, alone and in pairs
        with passes of another micro-batch; `updates` holds one update per cut.
        """
        passes, together = passes_of
        whose = np.repeat(cuts.whose[of_update], 1 + self.draws)
        arrays = passes.per_chunk(cuts.chunks, whose, prices.of(SEND, Part("", What.SEND), rows))
        if structure.pairs:
            arrays |= passes.saved(together, cuts.chunks, whose)
        gradients, optimizer, gather = self._updates(cuts, updates, of_update)
        links_us = partial(passes.links_us, cuts.chunks, whose)
        overlap = self._overlap(layouts, structure, rows, arrays, links_us, gradients, gather)
        if layouts.like.overlap_parameters:
            gather = np.zeros_like(gather)
        arrays |= {
            "all_reduce_us": gradients,
            "update_us": optimizer + gather + self.host.update_us(layouts, rows, self._decompose),
        }
        rows = np.repeat(rows, 1 + self.draws)
        others = {
            "gather_us": gather,
            "layer_forward_us": passes.layers[0].forward_us,
            "layer_backward_us": passes.layers[0].backward_us,
        }
        # NaN marks a missing answer, and survives a sum.
        parts = [*arrays.values(), *(() if overlap is None else (overlap.first_us, overlap.last_us))]
        known = ~np.isnan(sum(array.sum(axis=1) for array in parts))
        if not known.all():
            rows = rows[known]
            arrays = {name: array[known] for name, array in arrays.items()}
            others = {name: array[known] for name, array in others.items()}
            overlap = None if overlap is None else overlap.take(known)
        if len(rows):
            yield Configurations(
                structure=structure,
                rows=rows,
                micro_batches=layouts["micro_batches"][rows],
                durations=Durations(**arrays, overlap=overlap),
                **others,
            )

    def _updates(self, cuts: Cuts, updates: Sequence[Prices], of_update: Rows) -> list[Times]:
        """Gradients, optimizer and gathers of layouts of one structure, [configs, stages] each."""
        found = [np.empty((len(of_update), 1 + self.draws, len(cuts.stages[0]))) for _ in range(3)]
        whose = cuts.whose[of_update]
        for index, (prices, stages) in enumerate(zip(updates, cuts.stages, strict=True)):
            own = np.flatnonzero(whose == index)
            if not len(own):
                continue
            at = np.searchsorted(cuts.layouts[index], of_update[own])
            for what, times in zip(UPDATE_PARTS, found, strict=True):
                part = Part("", what)
                known = {stage: prices.of(update_kind(stage), part, at) for stage in dict.fromkeys(stages)}
                of_stages = np.stack([known[stage] for stage in stages], axis=1)
                times[own] = of_stages.reshape(len(own), 1 + self.draws, -1)
        return [times.reshape(-1, len(cuts.stages[0])) for times in found]

    def _passes(
        self, layouts: Layouts, prices: Prices, found: Sequence[tuple[Structure, Rows]]
    ) -> dict[Structure, tuple[Passes, ...]]:
        """Passes through the blocks of each structure's layouts, alone and in pairs with one of another micro-batch.

        They are made together for structures that differ in how the model is cut alone.
        """
        alike: dict[tuple[bool, ...], list[tuple[Structure, Rows]]] = {}
        for one in found:
            alike.setdefault((one[0].is_split, one[0].is_sharded, one[0].pairs), []).append(one)
        made = {}
        for several in alike.values():
            shared, rows = several[0][0], np.concatenate([own for _, own in several])
            passes_of = partial(self._passes_alike, layouts, shared, prices, rows)
            alone, first = passes_of(in_pairs=False), 0
            together = passes_of(in_pairs=True) if shared.pairs else alone
            for structure, own in several:
                at = self._drawn(np.arange(first, first := first + len(own)))
                made[structure] = tuple(one.take(at, structure) for one in (alone, together))
        return made

    def _drawn(self, rows: Rows) -> Rows:
        """Positions of layouts' configurations, [rows · (1 + draws)]."""
        found: Rows = (rows[:, None] * (1 + self.draws) + np.arange(1 + self.draws)).reshape(-1)
        return found

    def _passes_alike(
        self, layouts: Layouts, structure: Structure, prices: Prices, rows: Rows, *, in_pairs: bool
    ) -> Passes:
        spans = self._spans(layouts, rows) if ON_LINKS.name in prices.kinds else None
        of = partial(self._block, layouts, prices, structure, rows=rows, in_pairs=in_pairs, spans=spans)
        kinds = range(len(kinds_of(self.model).distinct))
        beside_copies = partial(self.host.beside_copies, layouts, rows)
        layers = kept = beside_copies(tuple(of(layer_name(kind)) for kind in kinds))
        if layouts.like.recompute_layers:
            kept = beside_copies(tuple(of(layer_name(kind), reruns=False) for kind in kinds))
        return Passes(
            structure=structure,
            first=of(FIRST),
            last=of(LAST),
            layers=layers,
            kept_layers=kept,
            exposed_share=layouts.like.exposed_share,
            forward_passes=layouts.like.forward_passes,
        )

    def _overlap(
        self,
        layouts: Layouts,
        structure: Structure,
        rows: Rows,
        passes: dict[str, Times],
        links_us: Callable[[], tuple[Times, Times]],
        gradients: Times,
        gather: Times,
    ) -> Overlap | None:
        """Effect of the update's collectives on the passes that they overlap; None if nothing overlaps."""
        combines, gathers = layouts.like.overlap_gradients, layouts.like.overlap_parameters
        if not (combines or gathers):
            return None
        from kernelcast.runtime.estimate.passes import overlapping_buckets, update_overlap

        distinct, whose = layouts.distinct(*OF_STAGES)
        counts = np.zeros((len(distinct), structure.pp))
        for row in sorted(set(whose[rows].tolist())):
            parts = self._decompose(distinct, row)
            counts[row] = overlapping_buckets(parts, parts.stages, structure.chunks_per_stage)
        return update_overlap(
            structure,
            forward_us=passes["forward_us"],
            send_us=passes["send_forward_us"],
            completing_us=passes["weight_us" if structure.is_split else "backward_us"],
            links_us=links_us(),
            gradients_us=gradients if combines else None,
            gather_us=gather if gathers else None,
            buckets=np.repeat(counts[whose[rows]], 1 + self.draws, axis=0),
            exposed_share=layouts.like.exposed_share,
        )

    def _decompose(self, layouts: Layouts, row: int) -> Decomposition:
        return self.parts or Decomposition(
            model=self.model,
            parallelism=layouts.parallelism(row),
            cluster=self.cluster,
            bucket_entries=self.bucket_entries,
            element_bytes=self.element_bytes,
        )

    def _block(
        self,
        layouts: Layouts,
        prices: Prices,
        structure: Structure,
        name: str,
        *,
        rows: Rows,
        in_pairs: bool,
        spans: NDArray[np.bool_] | None,
        reruns: bool = True,
    ) -> BlockTimes:
        """Times of a block; without `reruns`, the backward pass recomputes nothing."""
        passes = partial(prices.of, MICRO_BATCH, rows=rows)
        backward = Part(name, What.BACKWARD if reruns else What.KEPT_BACKWARD)
        again = (What.OVERLAPPED_AGAIN,) if reruns else ()

        def with_overlapped(alone: Part, *whats: What) -> Times:
            exposed_us = [
                self._exposed_us(layouts, prices, structure, part, rows, in_pairs)
                for part in prices.overlapped(MICRO_BATCH, name, *whats)
            ]
            whole_us = passes(alone)
            if not exposed_us:
                return whole_us
            # Exposed collectives run while the device waits for its host.
            ahead_us = passes(alone._replace(is_compute=True))
            return np.maximum(whole_us, sum_of([ahead_us, *exposed_us]))

        forward_us = with_overlapped(Part(name, What.FORWARD), What.OVERLAPPED_FORWARD)
        backward_us = with_overlapped(backward, What.OVERLAPPED_BACKWARD, *again)
        nothing = np.zeros_like(forward_us)
        link_us = [nothing, nothing]
        if spans is not None:
            links = (What.FORWARD_BETWEEN, What.FORWARD_INSIDE), (What.BACKWARD_BETWEEN, What.BACKWARD_INSIDE)
            link_us = [
                np.where(spans, *(prices.of(ON_LINKS, Part(name, what), rows) for what in own))
                for own in links
            ]
        shards = partial(prices.of, SHARDS, rows=rows)
        return BlockTimes(
            forward_us=forward_us,
            backward_us=backward_us,
            forward_link_us=link_us[0],
            backward_link_us=link_us[1],
            weight_us=passes(backward, weights=True) if structure.is_split else nothing,
            gather_us=shards(Part(name, What.GATHER)) if structure.is_sharded else nothing,
            scatter_us=shards(Part(name, What.SCATTER)) if structure.is_sharded else nothing,
        )

    def _spans(self, layouts: Layouts, rows: Rows) -> NDArray[np.bool_]:
        """Whether ZeRO's shards are gathered over the links between nodes, where passes have collectives too."""
        own = layouts.take(rows)
        spans = shards_span_nodes(own.like.shard_group or own.replicas, own["tp"], self.cluster)
        # A second copy of the model is on other nodes, if the job has several.
        spans |= (own["copies"] > 1) & (own.devices > self.cluster.gpus_per_node)
        return np.repeat(spans, 1 + self.draws)

    def _exposed_us(
        self, layouts: Layouts, prices: Prices, structure: Structure, part: Part, rows: Rows, in_pairs: bool
    ) -> Times:
        """Exposed time that an overlapped collective adds to its pass."""
        network_us, overlap = prices.of(MICRO_BATCH, part, rows), part.overlap
        assert overlap is not None
        if not network_us.any():
            return network_us
        if overlap.of_weights and structure.is_split:
            # Zero-bubble makes the weights' gradients later: nothing computes meanwhile.
            return network_us
        if overlap.another_micro_batch and not (in_pairs or layouts.like.expert_overlap):
            # A pass alone has no other micro-batch to overlap.
            return network_us
        compute_us = prices.of(MICRO_BATCH, part._replace(is_compute=True), rows)
        if overlap.in_pieces:
            compute_us = compute_us * (1 - 1 / np.repeat(layouts["tp"][rows], 1 + self.draws))
        share = layouts.like.exposed_share
        if structure.pairs and overlap.another_micro_batch:
            return exposed_us(network_us, compute_us, share)
        exposed = exposed_us(network_us, compute_us, share_in_layer(share))
        if overlap.another_micro_batch:
            # First forward and last backward passes have no partner.
            alone = np.minimum(1.0, layouts["pp"] / layouts["micro_batches"])[rows]
            exposed = exposed + np.repeat(alone, 1 + self.draws) * (network_us - exposed)
        return exposed


def _pass_kinds(layouts: Layouts) -> tuple[Kind, ...]:
    """The columns that passes through the blocks depend on."""
    overlaps = layouts.like.overlap_gradients or layouts.like.overlap_parameters
    return (MICRO_BATCH, SHARDS, *((ON_LINKS,) if overlaps or (layouts["zero"] >= 2).any() else ()))
