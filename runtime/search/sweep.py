"""Goes through a space, or a part of it, and keeps the best layouts; memory stays flat."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.answers.asking import kernel_change
from kernelcast.runtime.answers.bundle_times import BundleTimes, check_format
from kernelcast.runtime.answers.collective_times import Collectives, collective_source
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.estimate.configurations import Configurations
from kernelcast.runtime.estimate.defaults import host_link_bytes_per_s
from kernelcast.runtime.estimate.engine import Engine
from kernelcast.runtime.memory.states import precision_of
from kernelcast.runtime.search.lower_bound import least_us
from kernelcast.runtime.search.needed_memory import look_for_fitting, needed_bytes
from kernelcast.runtime.search.partial_result import Found
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.ranking import Ranked
from kernelcast.runtime.step.chunks import AS_SPLIT
from kernelcast.runtime.step.layouts import Layouts

_PRICED_AT_ONCE = 1 << 14
"""Layouts whose pieces are priced together, which spreads the cost of each structure."""
_FIRST, _GROWTH = 1 << 6, 1 << 3
"""Size of the first block of layouts, whose times are the bar for the others, and the growth of further blocks."""
_MOST_WAITING = 1 << 22
"""Durations of layouts that wait to be simulated, of 8 bytes each."""

Report = Callable[[int, int, str], None]
"""Takes (done, total, what) now and then."""


def sweep(
    predictor: Predictor,
    question: Question,
    *,
    shard: int = 0,
    shards: int = 1,
    report: Report | None = None,
) -> Found:
    """Go through one of `shards` equal parts of the space.

    Raises:
        DataError: a regressor answers nonsense, or the attention kernel cannot be predicted.
    """
    return _Sweep(predictor, question, shard, shards, report).run()


class _Sweep:
    def __init__(
        self, predictor: Predictor, question: Question, shard: int, shards: int, report: Report | None
    ) -> None:
        self.question, self.shard, self.shards, self.report = question, shard, shards, report
        self.predictor = predictor
        self.engines: dict[Predictor, Engine] = {}
        self.answers: list[BundleTimes] = []
        self.found = Found()
        self.prunes = question.timeline == "simulate" and question.prune
        # Layouts with known bounds, and the most promising of them.
        self.waiting: list[tuple[Configurations, Ranked]] = []
        self.promising = Found()
        check_format(question.space.common["fp8_recipe"], predictor.bundle)
        over = collective_source(predictor, question.fabric)
        self.collectives = (
            None if over is None else Collectives(source=over, gpus_per_node=question.cluster.gpus_per_node)
        )
        self.units = sum(1 for _ in question.space.units()) if report is not None else 0
        self.done = 0

    def run(self) -> Found:
        for engine, layouts, memory in self._fitting():
            if self.prunes and not self.question.front:
                self._best_first(engine, layouts, memory)
            else:
                self._evaluate(engine, *self._balanced(engine, layouts, memory))
        self._settle()
        counts = self.found.counts
        if counts.layouts and counts.layouts == counts.out_of_memory:
            # The memory of the fullest stages was not requested.
            bundle, part = self.predictor.bundle, {"shard": self.shard, "shards": self.shards}
            self.found.smallest = look_for_fitting(bundle, self.question, **part).smallest
        for answers in self.answers:
            self.found.problems |= answers.problems
        return self.found

    def _best_first(self, engine: Engine, layouts: Layouts, memory: NDArray[np.float64]) -> None:
        """Evaluate layouts in growing blocks, the least bounds first, until no bound allows a place among the best."""
        bounded = self._bounded(engine, layouts, memory, in_full=False)
        order = np.argsort(bounded.score, kind="stable")
        # The ends of the model, and what ZeRO-2 and 3 send, are priced for few layouts: once others are a bar.
        may_lead = self._may_be_best(bounded) & ~layouts.are_sharded
        first = order[may_lead[order]][:_FIRST]
        self._evaluate_now(engine, bounded.take(first))
        is_left = self._may_be_best(bounded)
        is_left[first] = False
        left_out = len(layouts) - len(first) - int(is_left.sum())
        rest = self._bounded(engine, layouts.take(is_left), memory[is_left], in_full=True)
        rest, size = rest.take(np.argsort(rest.score, kind="stable")), _GROWTH * _FIRST
        while True:
            is_left = self._may_be_best(rest)
            left_out += int((~is_left).sum())
            rest = rest.take(is_left)
            if not len(rest):
                break
            self._evaluate_now(engine, rest.take(slice(size)))
            rest, size = rest.take(slice(size, None)), _GROWTH * size
        self.found.counts.evaluated += left_out
        self.found.counts.pruned += left_out

    def _bounded(
        self, engine: Engine, layouts: Layouts, memory: NDArray[np.float64], *, in_full: bool
    ) -> Ranked:
        """Layouts with lower bounds of their steps (`least_us`)."""
        least = least_us(engine, layouts, in_full=in_full)
        return Ranked(layouts, self.question.score(layouts, least), least, memory)

    def _evaluate_now(self, engine: Engine, bounded: Ranked) -> None:
        if len(bounded):
            self._evaluate(engine, *self._balanced(engine, bounded.layouts, bounded.memory_bytes))
            self._settle()

    def _may_be_best(self, bounded: Ranked) -> NDArray[np.bool_]:
        """As `_may_matter`; those without an answer are evaluated too, which counts them."""
        return np.isnan(bounded.score) | self._may_matter(bounded)

    def _evaluate(self, engine: Engine, layouts: Layouts, memory: NDArray[np.float64]) -> None:
        answered = 0
        for group in engine.configurations(layouts):
            answered += len(group.rows)
            own, needed = layouts.take(group.rows), memory[group.rows]
            if self.prunes:
                self._wait(group, own, needed)
            else:
                times = group.times(self.question.timeline).step_us
                self._keep(self.found, Ranked(own, self.question.score(own, times), times, needed))
        self.found.counts.unanswered += len(layouts) - answered
        self.found.counts.evaluated += answered
        if not self.prunes and self.question.timeline == "simulate":
            self.found.counts.simulated += answered

    def _keep(self, found: Found, ranked: Ranked) -> None:
        question = self.question
        found.add(ranked, question.top, front=question.front, by_kind=question.by_kind)

    def _may_matter(self, bounded: Ranked) -> NDArray[np.bool_]:
        """Whether layouts with these lower bounds of their scores can be among the best, or on the front."""
        return self.found.may_matter(self.question, bounded)

    def _wait(self, group: Configurations, layouts: Layouts, memory: NDArray[np.float64]) -> None:
        """Keep a group with its bounds; the most promising layouts are simulated first."""
        bounds = group.bound_us()
        bounded = Ranked(layouts, self.question.score(layouts, bounds), bounds, memory)
        chosen = self._may_matter(bounded)
        self.found.counts.pruned += int((~chosen).sum())
        if chosen.any():
            bounded = bounded.take(chosen)
            self._keep(self.promising, bounded)
            self.waiting.append((group.take(chosen), bounded))
        if sum(group.durations.forward_us.size for group, _ in self.waiting) > _MOST_WAITING:
            self._settle()

    def _settle(self) -> None:
        """Simulate the most promising of the waiting layouts, then the layouts that may still be better."""
        promising = self.promising.best.with_others(self.promising.front).layouts["index"].tolist()
        seeds = [
            np.array([index in promising for index in bounded.layouts["index"].tolist()], dtype=bool)
            for _, bounded in self.waiting
        ]
        for (group, bounded), chosen in zip(self.waiting, seeds, strict=True):
            self._simulate(group, bounded, chosen)
        # Groups with the best bounds first: their times rule out most of the others.
        waiting = zip(self.waiting, seeds, strict=True)
        for (group, bounded), is_seed in sorted(waiting, key=lambda one: float(one[0][1].score.min())):
            may_matter = self._may_matter(bounded)
            self.found.counts.pruned += int((~(may_matter | is_seed)).sum())
            self._simulate(group, bounded, may_matter & ~is_seed)
        self.waiting, self.promising = [], Found()

    def _simulate(self, group: Configurations, bounded: Ranked, chosen: NDArray[np.bool_]) -> None:
        """Rank the chosen layouts of a group by their simulated times."""
        if not chosen.any():
            return
        own, times = bounded.take(chosen), group.times("simulate", chosen).step_us
        self.found.counts.simulated += len(times)
        score = self.question.score(own.layouts, times)
        self._keep(self.found, Ranked(own.layouts, score, times, own.memory_bytes))

    def _engines(self, layouts: Layouts) -> Iterator[tuple[Engine, NDArray[np.bool_]]]:
        """Layouts by their engine: those with the same number of busy processes per node share one."""
        busy = np.minimum(layouts.devices, self.question.cluster.gpus_per_node)
        rows: dict[Predictor, NDArray[np.bool_]] = {}
        for processes in sorted(set(busy.tolist())):
            predictor, own = self.predictor.at(processes), busy == processes
            rows[predictor] = rows[predictor] | own if predictor in rows else own
        for predictor, own in rows.items():
            if predictor not in self.engines:
                question = self.question
                factors = predictor.factors_for(question.timeline)
                answers = BundleTimes(
                    predictor,
                    factors=factors,
                    collectives=self.collectives,
                    kernel=kernel_change(
                        question.space.common["attention_kernel"], self.predictor.bundle, factors
                    ),
                    power_limit_w=question.space.common["power_limit_w"],
                )
                self.answers.append(answers)
                self.engines[predictor] = Engine(
                    question.space.model,
                    question.cluster,
                    question.bucket_entries,
                    answers,
                    element_bytes=precision_of(predictor.bundle.manifest.dtype).element,
                    host_link_bytes_per_s=host_link_bytes_per_s(predictor.bundle),
                )
            yield self.engines[predictor], own

    def _balanced(
        self, engine: Engine, layouts: Layouts, memory: NDArray[np.float64]
    ) -> tuple[Layouts, NDArray[np.float64]]:
        """The layouts with layers balanced by time, if requested and if they still fit, and their memory."""
        question = self.question
        if layouts.like.layer_split != "balanced":
            return layouts, memory
        balanced = engine.balanced(layouts)
        changed = np.flatnonzero(balanced.ends[0] != AS_SPLIT)
        if not len(changed):
            return layouts, memory
        needed = memory.copy()
        needed[changed] = needed_bytes(
            self.predictor.bundle,
            question.space.model,
            balanced.take(changed),
            most_bytes=question.most_bytes,
        )
        fits = needed <= question.usable_bytes(layouts)
        return layouts.with_ends(np.where(fits, balanced.ends, AS_SPLIT), balanced.layers), np.where(
            fits, needed, memory
        )

    def _fitting(self) -> Iterator[tuple[Engine, Layouts, NDArray[np.float64]]]:
        """Layouts that fit into memory, some thousand at once, with their engine and the memory they need."""
        for layouts, memory in _together(self._fitting_blocks()):
            for engine, rows in self._engines(layouts):
                yield engine, layouts.take(rows), memory[rows]

    def _fitting_blocks(self) -> Iterator[tuple[Layouts, NDArray[np.float64]]]:
        """The layouts of every block that fit into memory, and the memory they need; the others are counted."""
        question, found, counts = self.question, self.found, self.found.counts
        blocks = question.space.blocks(
            simulated=question.timeline == "simulate",
            shard=self.shard,
            shards=self.shards,
            refusals=found.refusals,
        )
        for layouts, units in blocks:
            counts.layouts += len(layouts)
            if len(layouts):
                memory = needed_bytes(
                    self.predictor.bundle, question.space.model, layouts, most_bytes=question.most_bytes
                )
                found.look_at_memory(layouts, memory)
                fits = np.flatnonzero(memory <= (question.most_bytes or np.inf))
                fits = fits[memory[fits] <= question.usable_bytes(layouts.take(fits))]
                counts.out_of_memory += len(layouts) - len(fits)
                if len(fits):
                    yield layouts.take(fits), memory[fits]
            self.done += units
            if self.report is not None:
                total = -(-self.units // self.shards)
                self.report(min(self.done, total), total, f"{counts.layouts:,} layouts")


def _together(
    blocks: Iterator[tuple[Layouts, NDArray[np.float64]]],
) -> Iterator[tuple[Layouts, NDArray[np.float64]]]:
    """Blocks with the memory they need, joined until they are large enough to price."""
    waiting: list[tuple[Layouts, NDArray[np.float64]]] = []
    for block in blocks:
        waiting.append(block)
        if sum(len(memory) for _, memory in waiting) >= _PRICED_AT_ONCE:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(
    blocks: list[tuple[Layouts, NDArray[np.float64]]],
) -> tuple[Layouts, NDArray[np.float64]]:
    table = np.concatenate([layouts.table for layouts, _ in blocks])
    return replace(blocks[0][0], table=table), np.concatenate([memory for _, memory in blocks])
