"""Why one traced run is slower or faster than another: causes with their ms per step, the largest first.

Computing is divided by modules (instances of a class are one) or, where no module is recorded, by operators of the
host. A factor that most kernels share is a cause of its own; a module is named for what exceeds it.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelcast.store.statistics import weighted_quantile

Floats = NDArray[np.float64]
LEAST_SHARE = 0.015
"""A cause below this share of the longer step is not named."""
_SPLIT = 2  # times the least change, for which a module is divided into its parts
_ALIKE = 0.25  # of the kernels' time may have changed less than what counts as common to all
_LEAST_FACTOR = 0.05
_SAME_SHAPES = 0.25  # of the time of a run: above, it computes the same as the other
_MORE_OFTEN = 0.4  # of the change in time: the change in launches
_OTHER_KERNELS = 0.3  # of the change
_ALSO, _SMALL, _LITTLE = 0.6, 0.25, 0.05  # of the change of its parts; of the time of a module
_MOST = 0.5  # of the time of all kernels: an outermost module of the same kernels is the whole model
_SCATTER = 0.5  # of the common change, by which kernels differ from it
_INSTANCE = re.compile(r"_\d+$")
_INSIDE = " / "
_MOST_NAMED = 3
_NO_STEPS: Floats = np.zeros((2, 1))
_QUANTILE = 2.6  # of the normal distribution, for 0.5 % in either direction
_DEVIATIONS = 1.48  # standard deviations of normal values in their median distance from the median


class Work(NamedTuple):
    """What events of a run are summed by."""

    class_: str
    kernel: str
    operator: str  # of the host
    direction: str
    scope: str
    shapes: str


Sums = Mapping[Work, tuple[float, float]]
"""Launches, and ms that nothing overlaps with the short gaps before them, per step and rank."""
IDLE, LOADER = Work("idle", *[""] * 5), Work("data loader", *[""] * 5)
"""Gaps of at least 0.1 ms between modules, others belong to what ends them; the data loader."""
GAPS = "gaps between its parts"
"""The kernel of such gaps inside a module; it is not launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceCause:
    """One cause.

    `kind`: device (most kernels by one factor), shapes (of all kernels), more_work (launched more or less often),
    kernels (others), slow_kernels (the same ones), recomputation, communication, copies, data_loader or host.
    """

    kind: str
    name: str  # of the module or operator; empty for the whole step
    change_ms: float
    line: str


_Told = tuple[DifferenceCause, bool]
"""A cause, and whether the scatter between steps explains it."""


class _Row(NamedTuple):
    """The same work in both runs; `path` are its modules, outermost first."""

    work: Work
    path: tuple[str, ...]
    one_launches: float
    one_ms: float
    two_launches: float
    two_ms: float
    kernels_ms: Floats  # without the gaps before them, [2 runs]
    by_steps: Floats


def difference_causes(
    one: Sums, two: Sums, *, idle_ms: Sequence[float], loader_ms: Sequence[float],
    short_ms: Mapping[Work, Floats] | None = None, by_steps: Mapping[Work, Floats] | None = None,
) -> tuple[DifferenceCause, ...]:  # fmt: skip
    """The causes of a difference that the scatter between steps does not explain.

    `idle_ms`: of longer gaps in either run; `loader_ms`: of its data loader; `short_ms`: of the short gaps [2 runs];
    `by_steps`: ms of each of several steps [2 runs, steps], NaN where a run has fewer.
    """
    by_steps, short_ms = by_steps or {}, short_ms or {}
    if not all(any(work.shapes for work in run) for run in (one, two)):  # only one run recorded them
        one, two, short_ms, by_steps = (_without_shapes(values) for values in (one, two, short_ms, by_steps))
    rows = []
    for work in one.keys() | two.keys():
        runs = one.get(work, (0.0, 0.0)), two.get(work, (0.0, 0.0))
        kernels_ms = np.subtract([ms for _, ms in runs], short_ms.get(work, 0.0)) * (work.kernel != GAPS)
        rows.append(_Row(work, _path(work), *runs[0], *runs[1], kernels_ms, by_steps.get(work, _NO_STEPS)))
    least_ms = LEAST_SHARE * max(_one_ms(rows) + idle_ms[0], _two_ms(rows) + idle_ms[1])
    by_class = defaultdict[str, list[_Row]](list)
    for row in rows:
        by_class["recomputation" if row.work.direction == "recomputation" else row.work.class_].append(row)
    loading = [row for row in by_class["compute"] if any("DataLoader" in part for part in row.path)]
    compute = [row for row in by_class["compute"] if row not in loading]
    found = [
        *_host(loading, idle_ms, loader_ms, [by_steps.get(work, _NO_STEPS) for work in (IDLE, LOADER)]),
        _cause("communication", "", by_class["communication"], "collectives that no kernel overlaps"),
        _cause("copies", "", by_class["memory"], "copies and fills that no kernel overlaps"),
        _cause("recomputation", "", by_class["recomputation"],
               "forward passes that the backward pass runs again (activation checkpointing)"),
    ]  # fmt: skip
    if _same_shapes(compute) < _SAME_SHAPES:
        text = "kernels compute other shapes: another batch, sequence length or model"
        found.append(_cause("shapes", "", compute, text))
    else:
        factor, common = _factors(compute)
        if abs(common - 1) < _LEAST_FACTOR:
            factor = 1.0
        else:
            text = f"most kernels take {factor:.2f} × as long: clocks, power, or other work on the device"
            found.append(_told("device", "", (factor - 1) * _kernels_ms(compute), text, _is_chance(compute)))
        changed = _changed(compute, (), factor, _SPLIT * least_ms)
        known = {row.work for _, part in changed for row in part}
        rest = [row for row in compute if row.work not in known]
        for path, part in [*changed, *_changed(rest, (), factor, least_ms)]:
            kind, text = _reason(part)
            if kind == "slow_kernels" and len(path) == 1 and _one_ms(part) >= _MOST * _one_ms(compute):
                kind = "device"
            found.append(_cause(kind, _INSIDE.join(path), part, text))
    named = [
        one for one, is_chance in found if not is_chance and one.change_ms and abs(one.change_ms) >= least_ms
    ]
    # Equal ones by their text: sums in another order differ in their last digits.
    return tuple(sorted(named, key=lambda one: (-abs(round(one.change_ms, 6)), one.line)))


def _without_shapes(values: Mapping[Work, Any]) -> dict[Work, Any]:
    found = dict[Work, Any]()
    for work, value in values.items():
        bare = work._replace(shapes="")
        found[bare] = np.add(value, found.get(bare, 0.0))
    return found


def _path(work: Work) -> tuple[str, ...]:
    """Modules without their instance numbers; the operator outside modules."""
    if not work.scope:
        return (f"{work.operator or work.kernel}{f' ({work.direction})' if work.direction else ''}",)
    return tuple(_INSTANCE.sub("", part) for part in work.scope.split(_INSIDE))


def _one_ms(rows: Sequence[_Row]) -> float:
    return sum(row.one_ms for row in rows)


def _two_ms(rows: Sequence[_Row]) -> float:
    return sum(row.two_ms for row in rows)


def _kernels_ms(rows: Sequence[_Row]) -> float:
    """In the first run, without the gaps before them."""
    return float(sum(row.kernels_ms[0] for row in rows))


def _is_chance(rows: Sequence[_Row], factor: float = 1.0) -> bool:
    return _is_scatter(sum((row.by_steps for row in rows), _NO_STEPS), factor)


def _is_scatter(by_steps: Floats, factor: float = 1.0) -> bool:
    """Whether the scatter between steps explains that the second run's time is not `factor` times the first's.

    Other work on a machine slows a few steps by much, so two tests by ranks must both deny it, at 0.5 % in either
    direction: pairs of steps (Mann and Whitney; all of few steps must differ), and medians against their standard error
    (1.25 times a mean's, if times are normal), by about the quantile of Student's t.
    """
    one, two = (run[~np.isnan(run)] for run in by_steps)
    one, count, freedom = one * factor, len(one) * len(two), len(one) + len(two) - 2
    if freedom < 1:
        return False
    longer = float(np.sign(two[:, None] - one).mean())  # 1: all steps of the second run
    if abs(longer) < min(2 * _QUANTILE * math.sqrt((freedom + 3) / 12 / count), 1.0):
        return True
    middles = np.median(one), np.median(two)
    deviation = _DEVIATIONS * np.median(np.abs(np.concatenate([one - middles[0], two - middles[1]])))
    error = 1.25 * deviation * math.sqrt(1 / len(one) + 1 / len(two))
    return bool(abs(middles[1] - middles[0]) < (_QUANTILE + 6 / freedom + 16 / freedom**2) * error)


def _told(kind: str, name: str, change_ms: float, text: str, is_chance: bool) -> _Told:
    line = f"{change_ms:+,.2f} ms: {f'{name}: ' if name else ''}{text}"
    return DifferenceCause(kind=kind, name=name, change_ms=change_ms, line=line), is_chance


def _cause(kind: str, name: str, rows: Sequence[_Row], text: str) -> _Told:
    return _told(kind, name, _two_ms(rows) - _one_ms(rows), text, _is_chance(rows))


def _host(
    loading: Sequence[_Row],
    idle_ms: Sequence[float],
    loader_ms: Sequence[float],
    by_steps: Sequence[Floats],
) -> Iterator[_Told]:
    """The device waits for its host. What a loader computes is part of its time, the rest leaves the device idle."""
    loaded_ms, waited_ms = loader_ms[1] - loader_ms[0], idle_ms[1] - idle_ms[0]
    computed_ms = _two_ms(loading) - _one_ms(loading)
    is_idle_chance, is_loader_chance = map(_is_scatter, by_steps)
    if (waited_ms + computed_ms) * loaded_ms >= loaded_ms**2 / 2 > 0:
        text = "the data loader, for which the device waits"
        yield _told("data_loader", "", loaded_ms, text, is_loader_chance)
        waited_ms -= loaded_ms - computed_ms
    text = "the device has nothing to do: Python, synchronisation, or a dependency"
    yield _told("host", "", waited_ms, text, is_idle_chance)


def _same_shapes(rows: Sequence[_Row]) -> float:
    """The share of the time of kernels with shapes that both runs have, of the run that has less of it."""
    shaped = [row for row in rows if row.work.shapes]
    one = {row.work.shapes for row in shaped if row.one_launches}
    both = one & {row.work.shapes for row in shaped if row.two_launches}
    same = [row for row in shaped if row.work.shapes in both]
    pairs = (_one_ms(same), _one_ms(shaped)), (_two_ms(same), _two_ms(shaped))
    return min(part / total if total else 1.0 for part, total in pairs)


def _factors(rows: Sequence[_Row]) -> tuple[float, float]:
    """Of kernels launched as often, how much longer they take: the median, and what three quarters exceed.

    By time. The second is at most the median, or with an opposite change at least; 1 where they do not agree.
    """
    alike = [row.kernels_ms for row in rows if row.kernels_ms[0] and 0 < row.one_launches == row.two_launches]
    ratios = [(two_ms / one_ms, one_ms) for one_ms, two_ms in alike]
    low, middle, high = (weighted_quantile(ratios, share) for share in (_ALIKE, 0.5, 1 - _ALIKE))
    return middle, low if low > 1 else min(high, 1.0)


def _changed(
    rows: Sequence[_Row], path: tuple[str, ...], factor: float, least_ms: float
) -> list[tuple[tuple[str, ...], list[_Row]]]:
    """The innermost modules that explain the changes beyond the common factor; one as a whole if all of it changed."""
    inside = defaultdict[str, list[_Row]](list)
    for row in rows:
        inside[row.path[len(path)] if len(row.path) > len(path) else ""].append(row)
    own, found = inside.pop("", []), []
    for name, part in inside.items():
        if parts := _changed(part, (*path, name), factor, least_ms):
            found += parts
        else:
            own = [*own, *part]
    if not path:
        return found
    # Kernels do not all change by the common factor.
    beyond_ms = max(least_ms, _SCATTER * abs(factor - 1) * _one_ms(own))
    excess_ms = 0.0 if _is_chance(own, factor) else abs(_excess_ms(own, factor))
    if found and _is_whole(
        own, [part for _, part in found], factor, is_changed=_SPLIT * excess_ms >= beyond_ms
    ):
        return [(path, list(rows))]
    return [*found, (path, own)] if excess_ms >= beyond_ms else found


def _excess_ms(rows: Sequence[_Row], factor: float) -> float:
    return _two_ms(rows) - _one_ms(rows) - (factor - 1) * _kernels_ms(rows)


def _is_whole(
    rest: Sequence[_Row], found: Sequence[Sequence[_Row]], factor: float, *, is_changed: bool
) -> bool:
    """Whether all parts of a module changed for one reason, and the rest of it as much, relative to its time.

    A small rest (`is_changed`) may have changed less.
    """
    kinds = {_reason(part)[0] for part in (*found, *([rest] if is_changed else ()))}
    if len(kinds - {"host"} or kinds) != 1 or len(found) + bool(rest) < 2:  # gaps are between whatever runs
        return False
    rows = [row for part in found for row in part]
    of_rest, of_found = (
        _excess_ms(one, factor) * _one_ms(other) for one, other in ((rest, rows), (rows, rest))
    )
    is_alike = of_rest * of_found > 0 and abs(of_rest) >= _ALSO * abs(of_found)
    times_ms = [_one_ms(one) + _two_ms(one) for one in (rest, rows)]
    if is_changed:
        return is_alike or (of_rest * of_found > 0 and times_ms[0] <= _SMALL * sum(times_ms))
    return is_alike or (len(found) > 1 and times_ms[0] <= _LITTLE * sum(times_ms))


def _reason(rows: Sequence[_Row]) -> tuple[str, str]:
    """Whether other kernels run, the same more often, or the same for longer."""
    sums = defaultdict[str, list[float]](lambda: [0.0] * 4)
    for row in rows:
        for place, value in enumerate(row[2:6]):
            sums[row.work.kernel][place] += value
    change_ms = _two_ms(rows) - _one_ms(rows)
    waited = sums.pop(GAPS, [0.0] * 4)
    if not sums or abs(waited[3] - waited[1]) > abs(change_ms) / 2:
        return (
            "host",
            "the device has nothing to do between its parts: Python, synchronisation, or a dependency",
        )
    new = {name: one[3] for name, one in sums.items() if not one[0]}
    gone = {name: one[1] for name, one in sums.items() if not one[2]}
    if sum(new.values()) + sum(gone.values()) >= _OTHER_KERNELS * abs(change_ms):
        listed = [
            ", ".join(sorted(one, key=lambda name: (-one[name], name))[:_MOST_NAMED]) for one in (new, gone)
        ]
        texts = (
            f"{word} {names}" for word, names in zip(("new are", "gone are"), listed, strict=True) if names
        )
        return "kernels", f"other kernels run: {', '.join(texts)}"
    one_launches, _, two_launches, _ = (sum(values) for values in zip(*sums.values(), strict=True))
    more, ratio = two_launches / one_launches, _two_ms(rows) / _one_ms(rows) if _one_ms(rows) else math.inf
    if abs(more - 1) >= _MORE_OFTEN * abs(ratio - 1):
        return "more_work", f"launches {two_launches:,.0f} kernels a step instead of {one_launches:,.0f}"
    longest = max(sorted(sums), key=lambda name: abs(sums[name][3] - sums[name][1]))
    return (
        "slow_kernels",
        f"the same kernels, with short gaps before them, take {ratio:.2f} × as long, most of all {longest}",
    )
