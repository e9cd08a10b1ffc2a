"""Two traced runs, per step and rank: parts, kernels, operators and modules that are slower, faster, new or gone."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kernelcast.store.database import Database
from kernelcast.store.difference_causes import DifferenceCause, Work, difference_causes
from kernelcast.store.runs import CUT
from kernelcast.store.trace_report import PARTS

_PARTS = (
    f"SELECT {', '.join(f'sum({part}) AS {part}' for part in PARTS)} FROM step_time WHERE run_id = ? AND {{}}"
)
# A gap that is short, or inside a module, belongs to what ends it.
_SUMS = """
    SELECT class, name, host_operator, direction, coalesce(scope, ''), shapes, count(*), sum(duration_us) / 1e3,
        sum(exposed_us + own_us) / 1e3, sum(idle_us - own_us) / 1e3
    FROM (
        SELECT *, iif(idle_us < 100 OR scope = lag(scope) OVER (PARTITION BY trace_id, device ORDER BY sequence),
            idle_us, 0) AS own_us
        FROM trace_event WHERE run_id = ?
    ) WHERE {} GROUP BY class, name, host_operator, direction, scope, shapes
"""
_LOADER = """
    SELECT coalesce(sum(total_ns), 0) / 1e6 AS loader_ms FROM (
        SELECT host_time.step AS step_index, traced_step.name AS step, total_ns
        FROM host_time JOIN timeline ON number = host_time.timeline_number JOIN trace ON trace.id = trace_id
        LEFT JOIN traced_step
            ON traced_step.timeline_number = host_time.timeline_number AND traced_step.step = host_time.step
        WHERE run_id = ? AND kind <> 'runtime' AND host_time.name LIKE '%DataLoader%'
    ) WHERE {}
"""
_WHOLE = f"step NOT LIKE '%{CUT}'"
_COUNTED = f"step_index > 0 AND {_WHOLE}", _WHOLE, "step_index IS NOT NULL", "1"
"""Steps that count: not the first, before which nothing was recorded, nor the last if it is cut, if there are others;
without marks the trace."""
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
    """Number of steps of all ranks, and the rest per step."""

    steps: int
    parts_ms: Mapping[str, float]
    work: Mapping[Work, tuple[float, float]]
    idle_ms: float  # in gaps between modules of at least 0.1 ms; others belong to what ends them
    loader_ms: float
    kernels: _Sums
    operators: _Sums
    modules: _Sums


def compare_traces(one: Database, one_run: str, two: Database, two_run: str) -> TraceComparison:
    """Compare two runs with timelines; if a run has marked steps, its other events are left out."""
    first, second = _per_step(one, one_run), _per_step(two, two_run)
    return TraceComparison(
        one_steps=first.steps,
        two_steps=second.steps,
        parts=tuple(
            Change(name=part, class_="", one_ms=first.parts_ms[part], two_ms=second.parts_ms[part])
            for part in PARTS
        ),
        kernels=_changes(first.kernels, second.kernels),
        operators=_changes(first.operators, second.operators),
        modules=_changes(first.modules, second.modules),
        causes=difference_causes(
            first.work,
            second.work,
            idle_ms=(first.idle_ms, second.idle_ms),
            loader_ms=(first.loader_ms, second.loader_ms),
        ),
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


def _per_step(database: Database, run_id: str) -> _PerStep:
    for counted in _COUNTED:
        [row] = database.query(
            f"SELECT count(*) AS steps FROM step_time WHERE run_id = ? AND {counted}", [run_id]
        )
        if steps := int(row["steps"]):
            break
    [parts] = database.query(_PARTS.format(counted), [run_id])
    sums = [defaultdict[tuple[str, str], list[float]](lambda: [0.0, 0.0]) for _ in range(3)]
    [loader] = database.query(_LOADER.format(counted), [run_id])
    work, idle_ms = dict[Work, tuple[float, float]](), 0.0
    for *about, launches, time_ms, own_ms, waited_ms in database.connection.execute(
        _SUMS.format(counted), (run_id,)
    ):
        class_, name, operator, direction, scope, _ = about
        work[Work(*about)] = launches / steps, own_ms / steps
        idle_ms += waited_ms / steps
        inside = scope.split(_INSIDE) if scope else []
        modules = {_INSIDE.join(inside[: level + 1]) for level in range(len(inside))}
        operators = {f"{operator} ({direction})" if direction else operator} if operator else set[str]()
        for known, named in zip(sums, ({(name, class_)}, {(one, class_) for one in operators},
                                       {(one, "") for one in modules}), strict=True):  # fmt: skip
            for key in named:
                known[key][0] += launches / steps
                known[key][1] += time_ms / steps
    return _PerStep(
        steps,
        {part: (total_ms or 0.0) / steps for part, total_ms in parts.items()},
        work,
        idle_ms,
        loader["loader_ms"] / steps,
        *({key: (launches, time_ms) for key, (launches, time_ms) in known.items()} for known in sums),
    )
