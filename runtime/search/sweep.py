"""Goes through a space, or a part of it, and keeps the best layouts; memory stays flat."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.answers.attention_kernel import kernel_change
from kernelcast.runtime.answers.bundle_times import BundleTimes, check_format
from kernelcast.runtime.answers.collective_times import Collectives, collective_source
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.estimate.configurations import Configurations
from kernelcast.runtime.estimate.defaults import host_link_bytes_per_s
from kernelcast.runtime.estimate.engine import Engine
from kernelcast.runtime.memory.states import precision_of
from kernelcast.runtime.search.needed_memory import look_for_fitting, needed_bytes
from kernelcast.runtime.search.partial_result import Found
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.ranking import Ranked
from kernelcast.runtime.step.balance import AS_SPLIT
from kernelcast.runtime.step.layouts import Layouts

_PRICED_AT_ONCE = 1 << 14
"""Layouts whose pieces are asked for together, which spreads the cost of each structure."""
_FIRST = 1 << 7
"""Layouts that are evaluated first: their times are the bar for the others."""
_MOST_WAITING = 1 << 17
"""Layouts that wait to be compared, of about 200 bytes each."""

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
        DataError: a regressor answers nonsense, or attention cannot be answered for the kernel that is asked.
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
        # Layouts with known bounds, the most promising of them, and exact times of promising ones.
        self.waiting: list[tuple[Engine, Ranked]] = []
        self.promising, self.exact = Found(), Found()
        check_format(question.space.common["fp8_recipe"], predictor.bundle)
        over = collective_source(predictor, question.fabric)
        self.collectives = (
            None if over is None else Collectives(source=over, gpus_per_node=question.cluster.gpus_per_node)
        )
        self.units = sum(1 for _ in question.space.units()) if report is not None else 0
        self.done = 0

    def run(self) -> Found:
        for engine, layouts, memory in self._fitting():
            if self.question.front:
                self._evaluate(engine, *self._balanced(engine, layouts, memory))
            else:
                self._best_first(engine, layouts, memory)
            if sum(len(bounded) for _, bounded in self.waiting) > _MOST_WAITING:
                self._settle()
        self._settle()
        counts = self.found.counts
        if counts.layouts and counts.layouts == counts.out_of_memory:
            # The memory of the fullest stages was not asked for.
            bundle, part = self.predictor.bundle, {"shard": self.shard, "shards": self.shards}
            self.found.smallest = look_for_fitting(bundle, self.question, **part).smallest
        for answers in self.answers:
            self.found.problems |= answers.problems
        return self.found

    def _best_first(self, engine: Engine, layouts: Layouts, memory: NDArray[np.float64]) -> None:
        """Evaluate the layouts whose passes take least, then those whose passes alone are not too slow to lead."""
        if not self.prunes or len(layouts) <= 2 * _FIRST:
            self._evaluate(engine, *self._balanced(engine, layouts, memory))
            return
        least = self.question.score(layouts, engine.least_us(layouts))
        is_first = np.zeros(len(layouts), dtype=bool)
        is_first[np.argsort(least, kind="stable")[:_FIRST]] = True
        self._evaluate(engine, *self._balanced(engine, layouts.take(is_first), memory[is_first]))
        self._settle()
        chosen = np.isnan(least) | self._may_matter(least, memory)
        left_out = int((~(chosen | is_first)).sum())
        self.found.counts.evaluated += left_out
        self.found.counts.pruned += left_out
        rest = chosen & ~is_first
        if rest.any():
            self._evaluate(engine, *self._balanced(engine, layouts.take(rest), memory[rest]))

    def _evaluate(self, engine: Engine, layouts: Layouts, memory: NDArray[np.float64]) -> None:
        take = self._wait if self.prunes else self._take
        answered = 0
        for group in engine.configurations(layouts):
            answered += len(group.rows)
            take(engine, group, layouts.take(group.rows), memory[group.rows])
        self.found.counts.unanswered += len(layouts) - answered
        self.found.counts.evaluated += answered

    def _take(self, _: Engine, group: Configurations, layouts: Layouts, memory: NDArray[np.float64]) -> None:
        """Rank a group by its times."""
        question, found = self.question, self.found
        if question.timeline == "closed-form":
            times = group.times("closed-form").step_us
            self._keep(found, Ranked(layouts, question.score(layouts, times), times, memory))
            return
        chosen = np.ones(len(layouts), dtype=bool)
        if self.prunes:
            chosen = self._may_matter(question.score(layouts, group.bound_us()), memory)
        found.counts.simulated += int(chosen.sum())
        found.counts.pruned += int((~chosen).sum())
        if chosen.any():
            own, times = layouts.take(chosen), group.times("simulate", chosen).step_us
            self._keep(found, Ranked(own, question.score(own, times), times, memory[chosen]))

    def _keep(self, found: Found, ranked: Ranked) -> None:
        question = self.question
        found.add(ranked, question.top, front=question.front, by_kind=question.by_kind)

    def _may_matter(self, bounds: NDArray[np.float64], memory: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether layouts with these lower bounds of their scores can be among the best, or on the front."""
        by_exact = self.exact.may_matter(self.question, bounds, memory)
        return by_exact & self.found.may_matter(self.question, bounds, memory)

    def _wait(
        self, engine: Engine, group: Configurations, layouts: Layouts, memory: NDArray[np.float64]
    ) -> None:
        """Keep a group with its bounds; the most promising layouts are simulated first."""
        bounds = group.bound_us()
        bounded = Ranked(layouts, self.question.score(layouts, bounds), bounds, memory)
        self._keep(self.promising, bounded)
        chosen = self._may_matter(bounded.score, memory)
        self.found.counts.pruned += int((~chosen).sum())
        if chosen.any():
            self.waiting.append((engine, bounded.take(chosen)))

    def _settle(self) -> None:
        """Simulate the most promising of the waiting layouts, then the layouts that may still be better."""
        seeds = self.promising.best.with_others(self.promising.front)
        # A layout can be in both groups; ranked twice it would take another's place.
        _, first = np.unique(seeds.layouts["index"], return_index=True)
        seeds = seeds.take(first)
        for engine, rows in self._engines(seeds.layouts):
            some = seeds.take(rows)
            for group in engine.configurations(some.layouts):
                own = some.layouts.take(group.rows)
                times = group.times("simulate").step_us
                ranked = Ranked(own, self.question.score(own, times), times, some.memory_bytes[group.rows])
                self._keep(self.exact, ranked)
        for engine, bounded in self.waiting:
            chosen = self._may_matter(bounded.score, bounded.memory_bytes)
            self.found.counts.pruned += int((~chosen).sum())
            if chosen.any():
                left = bounded.take(chosen)
                for group in engine.configurations(left.layouts):
                    own = left.layouts.take(group.rows)
                    self._take(engine, group, own, left.memory_bytes[group.rows])
        self.waiting, self.promising = [], Found()

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
        """The layouts with layers balanced by time, if asked for and if they still fit, and their memory."""
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
            most_bytes=question.usable_bytes,
        )
        if question.usable_bytes is None:
            return balanced, needed
        fits = needed <= question.usable_bytes
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
                    self.predictor.bundle, question.space.model, layouts, most_bytes=question.usable_bytes
                )
                found.look_at_memory(layouts, memory)
                if question.usable_bytes is not None:
                    fits = memory <= question.usable_bytes
                    counts.out_of_memory += int((~fits).sum())
                    layouts, memory = layouts.take(fits), memory[fits]
                if len(layouts):
                    yield layouts, memory
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
