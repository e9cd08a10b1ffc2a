"""Two traced runs, per step and rank: parts, kernels, operators and modules that are slower, faster, new or gone."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from kernelcast.store.database import Database
from kernelcast.store.difference_causes import (
    GAPS,
    IDLE,
    LOADER,
    DifferenceCause,
    Floats,
    Work,
    difference_causes,
)
from kernelcast.store.runs import CUT
from kernelcast.store.trace_report import PARTS

_PARTS = f"SELECT {', '.join(f'sum({part}) AS {part}' for part in PARTS)} FROM step_time WHERE run_id = ? AND {{where}}"
# A gap that is short, or inside a module, belongs to what ends it; another one has the scope before it.
_SUMS = """
    SELECT class, name, host_operator, direction, coalesce(scope, ''), shapes, {group}, count(*),
        sum(duration_us) / 1e3, sum(exposed_us) / 1e3, sum(idle_us) / 1e3, before
    FROM (
        SELECT *, iif(idle_us >= 100, nullif(coalesce(lag(scope) OVER (
            PARTITION BY trace_id ORDER BY sequence), ''), coalesce(nullif(scope, ''), '?')), NULL) AS before
        FROM trace_event WHERE run_id = ?
    ) WHERE {where} GROUP BY class, name, host_operator, direction, scope, shapes, {group}, before
"""
_LOADER = """
    SELECT {group}, sum(total_ns) / 1e6 FROM (
        SELECT host_time.step AS step_index, traced_step.name AS step, total_ns
        FROM host_time JOIN timeline ON number = host_time.timeline_number JOIN trace ON trace.id = trace_id
        LEFT JOIN traced_step
            ON traced_step.timeline_number = host_time.timeline_number AND traced_step.step = host_time.step
        WHERE run_id = ? AND kind <> 'runtime' AND host_time.name LIKE '%DataLoader%'
    ) WHERE {where} GROUP BY {group}
"""
_WHOLE = f"step NOT LIKE '%{CUT}'"
_COUNTED = f"step_index > 0 AND {_WHOLE}", _WHOLE, "step_index IS NOT NULL", "1"
"""Steps that count: not the first, before which nothing was recorded, nor the last if it is cut, if there are others;
without marks the trace."""
_STEP = "coalesce(step_index, 0)"
_GROUPS = 16, 15, 13
"""Steps are summed in groups, whose scatter tells chance from a cause: by the first of these divisors that gives most,
because counted steps may lie equally far from each other."""
_STEPS = "SELECT {group}, count(*) FROM step_time WHERE run_id = ? AND {where} GROUP BY {group}"
_INSIDE = " / "

_Sums = Mapping[tuple[str, str], tuple[float, float]]
"""Launches and ms by name and class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A part of the step, a kernel, an operator or a module in two runs, ms per step and rank. None: absent."""

    name: str
    class_: str
    one_ms: float | None
    two_ms: float | None
    one_launches: float | None = None
    two_launches: float | None = None

    @property
    def change_ms(self) -> float:
        return (self.two_ms or 0.0) - (self.one_ms or 0.0)

    @property
    def kind(self) -> str:
        """`new`, `gone`, `slower`, `faster`, or empty."""
        if self.one_ms is None or self.two_ms is None:
            return "new" if self.one_ms is None else "gone"
        return "slower" if self.change_ms > 0 else "faster" if self.change_ms < 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceComparison:
    """Parts of the step in order; kernels, operators of the host and modules by absolute change, largest first."""

    one_steps: int  # of all ranks
    two_steps: int
    parts: tuple[Change, ...]
    kernels: tuple[Change, ...]
    operators: tuple[Change, ...]
    modules: tuple[Change, ...]  # annotations too, with everything inside them
    causes: tuple[DifferenceCause, ...]  # the largest first

    @property
    def step(self) -> Change:
        one = sum(part.one_ms or 0.0 for part in self.parts)
        two = sum(part.two_ms or 0.0 for part in self.parts)
        return Change(name="step", class_="", one_ms=one, two_ms=two)


class _PerStep(NamedTuple):
    """Sums over the steps of all ranks, by groups of steps, and the rest per step."""

    steps: Floats  # [groups], how many
    totals_ms: Mapping[Work, Floats]  # [groups]
    launches: Mapping[Work, float]
    short_ms: Mapping[Work, float]  # gaps before kernels
    parts_ms: Mapping[str, float]
    kernels: _Sums
    operators: _Sums
    modules: _Sums


def compare_traces(one: Database, one_run: str, two: Database, two_run: str) -> TraceComparison:
    """Compare two runs with timelines; if a run has marked steps, its other events are left out."""
    first, second = _per_step(one, one_run), _per_step(two, two_run)
    return TraceComparison(
        one_steps=int(first.steps.sum()),
        two_steps=int(second.steps.sum()),
        parts=tuple(
            Change(name=part, class_="", one_ms=first.parts_ms[part], two_ms=second.parts_ms[part])
            for part in PARTS
        ),
        kernels=_changes(first.kernels, second.kernels),
        operators=_changes(first.operators, second.operators),
        modules=_changes(first.modules, second.modules),
        causes=_causes(first, second),
    )


def _causes(*runs: _PerStep) -> tuple[DifferenceCause, ...]:
    means_ms = [
        {work: float(ms.sum() / run.steps.sum()) for work, ms in run.totals_ms.items()} for run in runs
    ]
    one, two = (
        {work: (run.launches.get(work, 0.0), ms) for work, ms in means.items() if work not in (IDLE, LOADER)}
        for run, means in zip(runs, means_ms, strict=True)
    )
    idle_ms, loader_ms = ([ms.get(work, 0.0) for ms in means_ms] for work in (IDLE, LOADER))
    by_steps = dict[Work, Floats]()
    for number, run in enumerate(runs):
        for work, ms in run.totals_ms.items():
            if work not in by_steps:
                by_steps[work] = np.full((2, max(_GROUPS)), np.nan)
                for row, other in zip(by_steps[work], runs, strict=True):
                    row[: len(other.steps)] = 0.0
            by_steps[work][number, : len(ms)] = ms / run.steps
    short_ms = {
        work: np.array([run.short_ms.get(work, 0.0) for run in runs]) for work in one.keys() | two.keys()
    }
    return difference_causes(
        one, two, idle_ms=idle_ms, loader_ms=loader_ms, short_ms=short_ms, by_steps=by_steps
    )


def _changes(one: _Sums, two: _Sums) -> tuple[Change, ...]:
    found = []
    for name, class_ in sorted(one.keys() | two.keys()):
        (one_launches, one_ms), (two_launches, two_ms) = (
            sums.get((name, class_), (None, None)) for sums in (one, two)
        )
        found.append(
            Change(name=name, class_=class_, one_ms=one_ms, two_ms=two_ms, one_launches=one_launches,
                   two_launches=two_launches)
        )  # fmt: skip
    return tuple(sorted(found, key=lambda change: -abs(change.change_ms)))


def _gap(before: str, after: str) -> Work:
    """A gap between two scopes: in the module around both, or the host's if that is the whole model."""
    pairs = zip(before.split(_INSIDE), after.split(_INSIDE), strict=False)
    around = _INSIDE.join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    is_inside = _INSIDE in around or before == after  # the same: an optimizer, which has no modules
    return Work("compute", GAPS, "", "", around, "") if is_inside else IDLE


def _per_step(database: Database, run_id: str) -> _PerStep:
    def asked(query: str, counted: str, group: str) -> Iterator[Any]:
        return iter(database.connection.execute(query.format(where=counted, group=group), (run_id,)))

    for counted in _COUNTED:
        if single := dict(asked(_STEPS, counted, _STEP)):
            break
    divisor = max(_GROUPS, key=lambda one: len({step % one for step in single}))
    group_by, groups = f"{_STEP} % {divisor}", Counter[int]()
    for step, count in single.items():
        groups[step % divisor] += count
    steps, places = sum(groups.values()), {group: place for place, group in enumerate(groups)}
    [parts] = asked(_PARTS, counted, group_by)
    sums = [defaultdict[tuple[str, str], list[float]](lambda: [0.0, 0.0]) for _ in range(3)]
    totals_ms = defaultdict[Work, Floats](lambda: np.zeros(len(groups)))
    count_of, short_ms = defaultdict[Work, float](float), defaultdict[Work, float](float)
    for group, loader_ms in asked(_LOADER, counted, group_by):
        totals_ms[LOADER][places.get(group, 0)] += loader_ms
    for *about, group, launches, time_ms, exposed_ms, gap_ms, before in asked(_SUMS, counted, group_by):
        class_, name, operator, direction, scope, _ = about
        count_of[Work(*about)] += launches / steps
        totals_ms[Work(*about)][places[group]] += exposed_ms + (gap_ms if before is None else 0.0)
        if before is None:
            short_ms[Work(*about)] += gap_ms / steps
        elif gap_ms:
            totals_ms[_gap(before, scope)][places[group]] += gap_ms
        inside = scope.split(_INSIDE) if scope else []
        modules = {_INSIDE.join(inside[: level + 1]) for level in range(len(inside))}
        operators = {f"{operator} ({direction})" if direction else operator} if operator else set[str]()
        for known, named in zip(sums, ({(name, class_)}, {(one, class_) for one in operators},
                                       {(one, "") for one in modules}), strict=True):  # fmt: skip
            for key in named:
                known[key][0] += launches / steps
                known[key][1] += time_ms / steps
    return _PerStep(
        np.array(list(groups.values()), dtype=float),
        totals_ms,
        count_of,
        short_ms,
        {part: (total_ms or 0.0) / steps for part, total_ms in zip(PARTS, parts, strict=True)},
        *({key: (launches, time_ms) for key, (launches, time_ms) in known.items()} for known in sums),
    )
