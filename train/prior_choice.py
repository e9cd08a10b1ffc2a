"""The choice per operator with a prior: its own regressor, the prior's corrected, or the prior's carried over."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.operators import OPERATORS, Key
from kernelcast.train.dataset import Table, aligned
from kernelcast.train.prior import MOST_POINTS, Prior, corrected


def corrections(prior: Prior, tables: Sequence[Table], *, statistic: str) -> list[RegressorEntry]:
    """The prior's regressors corrected by every table that is small enough, or by the sum of several tables.

    Tables of several processes per node are left out, as priors hold operators that run alone.
    """
    alone = {(one.operator, one.direction): one for one in tables if one.processes_per_node == 1}
    wanted = [*alone.values(), *_sums(prior, alone)]
    return [
        corrected(prior, one, statistic=statistic)
        for one in wanted
        if (one.operator, one.direction) in prior and len(one) <= MOST_POINTS
    ]


def choose(
    prior: Prior,
    own: Sequence[RegressorEntry],
    corrected_entries: Sequence[RegressorEntry],
    *,
    statistic: str,
) -> tuple[RegressorEntry, ...]:
    """The regressor with the smaller held-out error per operator and direction; without rows the prior's."""
    found = {(*one.key, one.processes_per_node): one for one in own}
    for one in corrected_entries:
        whole, *parts = parts_of(one.key)
        rivals = [found[(*key, 1)] for key in (whole, *parts) if (*key, 1) in found]
        if len(rivals) < max(1, len(parts)) or one.validation_error <= np.mean(
            [rival.validation_error for rival in rivals]
        ):
            for rival in rivals:
                del found[(*rival.key, 1)]
            found[(*one.key, 1)] = one
    answered = {one.key for one in found.values()}
    for key in prior.bundle.entries:
        if key in prior and key not in answered and not _is_summed(key, answered):
            level = prior.bundle.entries[key].processes_per_node
            found[(*key, level)] = replace(prior.carried(key), statistic=statistic, role_errors={})
    return tuple(found.values())


def parts_of(key: Key) -> tuple[Key, ...]:
    """The key, and the keys of the directions that add up to it."""
    operator, direction = key
    return key, *((operator, part) for part in OPERATORS[operator].sums.get(direction, ()))


def _is_summed(key: Key, answered: set[Key]) -> bool:
    _, *parts = parts_of(key)
    return bool(parts) and answered.issuperset(parts)


def _sums(prior: Prior, alone: Mapping[Key, Table]) -> Iterator[Table]:
    """Tables of directions that only the prior has, as sums of measured ones (a linear's two gradients)."""
    for operator, direction in prior.bundle.entries:
        _, *parts = parts_of((operator, direction))
        tables = [alone[part] for part in parts if part in alone]
        if not tables or len(tables) < len(parts) or (operator, direction) in alone:
            continue
        if any((operator, part.direction) in prior for part in tables):
            continue
        picked = aligned(tables)
        if len(picked[0]):
            yield Table(
                operator=operator,
                direction=direction,
                workloads=picked[0].workloads,
                times_us=np.sum([part.times_us for part in picked], axis=0),
                load=picked[0].load if len({part.load for part in picked}) == 1 else Load.NOT_STATED,
                role_times_us={
                    role: np.sum([part.role_times_us[role] for part in picked], axis=0)
                    for role in picked[0].role_times_us
                    if all(role in part.role_times_us for part in picked)
                },
            )
