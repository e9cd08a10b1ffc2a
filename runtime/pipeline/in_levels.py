"""Any fixed order of passes, evaluated level by level for many configurations at once.

A unit of passes (`passes.units`) has the level after the latest unit that it waits for: the unit before it on its
stage, and the units whose output it reads. All units of a level are on different stages, so a level is a few array
operations. In the steady phase of a long step the levels repeat with later micro-batches. Only messages in flight are
kept: messages of one kind and chunk take turns in a few places, freed when they are read.
"""

from collections import Counter, deque
from collections.abc import Container, Sequence

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.byte_cache import remembered
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.pipeline.durations import Durations, Ends, Times, run_steady
from kernelcast.runtime.pipeline.messages import Message, Messages
from kernelcast.runtime.pipeline.schedules import Kind, Pass, stage_orders, units
from kernelcast.runtime.request.fields import Schedule

_Rows = NDArray[np.intp]
_Unit = tuple[Pass, ...]
_Type = tuple[tuple[Kind, int, bool], ...]
"""For each pass of a unit: its kind and chunk, and whether collectives of the update lengthen it."""

_HISTORY = 8
"""Longest repetition of times that is looked for, in rounds."""
_REPEATING = 5
"""A long step puts about this number times pp micro-batches into levels: by then the schedules repeat."""
_MOST_ROUND = 16
"""Micro-batches of a round divide this."""
_LONGEST_PERIOD = 12
"""Levels of a period: six passes, each perhaps a unit, for a micro-batch through both chunks of a stage."""


@dataclass(frozen=True, slots=True)
class _Level:
    """Units that run at once: stages, types, and the rows of what they read and send, [units] each; without an input a
    unit waits for its stage alone. `sends` are rows of message times, `completes` (turn, stage, chunk) of units that
    complete a chunk's gradients.
    """

    stages: _Rows
    types: _Rows
    inputs: tuple[_Rows, ...]
    outputs: tuple[_Rows, ...]
    sends: tuple[_Rows, ...]
    completes: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A schedule in levels; `first` to `stop` can be repeated as a `round` of micro-batches (0: none). `types`
    are the distinct kinds of units, `rows` the number of rows of the state.
    """

    levels: tuple[_Level, ...]
    first: int
    stop: int
    round: int
    types: tuple[_Type, ...]
    rows: int


def in_levels(schedule: Schedule, durations: Durations, micro_batches: int, virtual_stages: int) -> Ends:
    """Evaluate a schedule that `stage_orders` lists, whose backward passes are split."""
    pp = durations.stages
    usual = _REPEATING * pp + _MOST_ROUND
    planned = min(micro_batches, usual + (micro_batches - usual) % _MOST_ROUND)
    plan = _plan(schedule, pp, planned, virtual_stages)
    if planned < micro_batches and not plan.round:
        planned = micro_batches
        plan = _plan(schedule, pp, micro_batches, virtual_stages)
    rounds = (micro_batches - planned) // plan.round if plan.round else 0
    times, sends = _times(plan.types, durations), _sends(durations)
    state = np.zeros((plan.rows, durations.configs))
    start = np.empty((durations.chunks // pp, pp, durations.configs))
    end = np.empty_like(start)

    def run(levels: Sequence[_Level]) -> None:
        for level in levels:
            _run(level, state, times, sends)
            for turn, stage, chunk in level.completes:
                end[turn, stage] = state[stage]
                start[turn, stage] = state[stage] - times[plan.types.index(((Kind.WEIGHT, chunk, True),))]

    def advance_of(configs: _Rows) -> "_Round":
        return _Round(plan.levels[plan.first : plan.stop], times[:, configs], sends[:, configs])

    run(plan.levels[: plan.first])
    if rounds:
        state = run_steady(advance_of, state, rounds, history=_HISTORY)
    run(plan.levels[plan.first :])
    return Ends(last_start_us=start, last_end_us=end, idle_from_us=state[:pp].copy())


class _Round:
    """Advances the state by a round."""

    def __init__(self, levels: Sequence[_Level], times: Times, sends: Times) -> None:
        self.levels, self.times, self.sends = levels, times, sends

    def __call__(self, state: Times) -> None:
        for level in self.levels:
            _run(level, state, self.times, self.sends)


def _run(level: _Level, state: Times, times: Times, sends: Times) -> None:
    end = state[level.stages]
    for rows in level.inputs:
        np.maximum(end, state[rows], out=end)
    end += times[level.types]
    state[level.stages] = end
    for rows, sent in zip(level.outputs, level.sends, strict=True):
        state[rows] = end + sends[sent]


def _times(types: tuple[_Type, ...], durations: Durations) -> Times:
    """What units take, [types, configs]."""
    of_kind = {
        Kind.FORWARD: (durations.forward_us, durations.saved_forward_us),
        Kind.BACKWARD: (durations.backward_us, durations.saved_backward_us),
        Kind.WEIGHT: (durations.weight_us, None),
    }
    found = np.zeros((len(types), durations.configs))
    for row, passes in enumerate(types):
        is_pair = passes[0][0] is Kind.FORWARD and len(passes) > 1
        for kind, chunk, is_longer in passes:
            time_us, saved_us = of_kind[kind]
            found[row] += time_us[:, chunk]
            if is_pair and saved_us is not None:
                found[row] -= saved_us[:, chunk]
            if is_longer and durations.overlap is not None:
                overlap = durations.overlap
                found[row] += (overlap.first_us if kind is Kind.FORWARD else overlap.last_us)[:, chunk]
    return found


def _sends(durations: Durations) -> Times:
    """What messages take: nothing; then forward and backward ones by the chunk that sends, [1 + 2 chunks, configs]."""
    nothing = np.zeros((1, durations.configs))
    return np.concatenate([nothing, durations.send_forward_us.T, durations.send_backward_us.T])


@remembered(32 << 20)
def _plan(schedule: Schedule, pp: int, micro_batches: int, virtual_stages: int) -> _Plan:
    orders = [list(units(order)) for order in stage_orders(schedule, pp, micro_batches, virtual_stages)]
    messages = Messages.of(schedule, pp, virtual_stages)
    level_of, by_level = _levels(orders, messages)
    places = _places(orders, level_of, messages)
    special = _special(orders)
    first, length = _repeated(orders, by_level, special)
    # After `places` micro-batches of a chunk, messages use the same places again.
    stop = first + length * places
    of_round = places * messages.copies if length and stop <= len(by_level) else 0
    if of_round and _MOST_ROUND % of_round:
        of_round = 0
    chunks = messages.chunks
    passes = (Pass(kind, chunk, 0) for kind in (Kind.FORWARD, Kind.BACKWARD) for chunk in range(chunks))
    # No rows for messages that are never sent: they would not change, and the state would never repeat.
    read = [message[:2] for one in passes if (message := messages.read(one))]
    rows = {kind_and_chunk: pp + places * index for index, kind_and_chunk in enumerate(read)}
    sink = pp + places * len(rows)
    types = dict[_Type, int]()
    for chunk in range(chunks):
        types.setdefault(((Kind.WEIGHT, chunk, True),), len(types))

    def row_of(message: Message) -> int:
        return rows[message[:2]] + message[2] % places

    def level(listed: Sequence[tuple[int, int]]) -> _Level:
        inputs, outputs, sends, of_type, completes = [], [], [], [], []
        for stage, index in listed:
            unit = orders[stage][index]
            of_type.append(
                types.setdefault(tuple((one.kind, one.chunk, one in special) for one in unit), len(types))
            )
            read = [row_of(message) for one in unit if (message := messages.read(one))]
            inputs.append([*read, stage, stage][:2])
            sent = [(one, message) for one in unit if (message := messages.sent(one))]
            outputs.append(([row_of(message) for _, message in sent] + [sink, sink])[:2])
            sends.append(
                ([1 + one.chunk + chunks * (one.kind is Kind.BACKWARD) for one, _ in sent] + [0, 0])[:2]
            )
            completes += [
                (special[one], stage, one.chunk) for one in unit if one in special and one.kind is Kind.WEIGHT
            ]
        columns = [np.array(rows, dtype=np.intp).reshape(-1, 2).T for rows in (inputs, outputs, sends)]
        return _Level(
            stages=np.array([stage for stage, _ in listed], dtype=np.intp),
            types=np.array(of_type, dtype=np.intp),
            inputs=tuple(columns[0]),
            outputs=tuple(columns[1]),
            sends=tuple(columns[2]),
            completes=tuple(completes),
        )

    return _Plan(tuple(map(level, by_level)), first, stop, of_round, tuple(types), sink + 1)


def _special(orders: Sequence[Sequence[_Unit]]) -> dict[Pass, int]:
    """Passes that overlapped collectives may lengthen: a chunk's first forward pass (value 0), and the pass that
    completes its gradients (value: its turn in the stage).
    """
    found = dict[Pass, int]()
    for order in orders:
        first, last = dict[int, Pass](), dict[int, Pass]()
        for unit in order:
            for one in unit:
                if one.kind is Kind.FORWARD:
                    first.setdefault(one.chunk, one)
                elif one.kind is Kind.WEIGHT:
                    last.pop(one.chunk, None)
                    last[one.chunk] = one
        found |= dict.fromkeys(first.values(), 0) | {one: turn for turn, one in enumerate(last.values())}
    return found


def _levels(
    orders: Sequence[Sequence[_Unit]], messages: Messages
) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
    """The level of every unit of every stage, and the (stage, unit) of every level."""
    found: list[list[int]] = [[] for _ in orders]
    sent = dict[Message, int]()
    waiting = deque(range(len(orders)))
    while waiting:
        stage = waiting.popleft()
        levels, woken = found[stage], set[int]()
        while len(levels) < len(orders[stage]):
            unit = orders[stage][len(levels)]
            read = [message for one in unit if (message := messages.read(one))]
            if not all(message in sent for message in read):
                break
            level = 1 + max([levels[-1] if levels else -1, *(sent[message] for message in read)])
            levels.append(level)
            for one in unit:
                if message := messages.sent(one):
                    sent[message] = level
                    woken.add(messages.stage_of(message[1]))
        waiting.extend(sorted(woken - set(waiting) - {stage}))
    by_level: list[list[tuple[int, int]]] = [[] for _ in range(1 + max(levels[-1] for levels in found))]
    for stage, levels in enumerate(found):
        for index, level in enumerate(levels):
            by_level[level].append((stage, index))
    return found, by_level


def _places(orders: Sequence[Sequence[_Unit]], level_of: list[list[int]], messages: Messages) -> int:
    """Places for the messages of a kind and chunk, a power of two: none is sent before its place has been read."""
    sent, read = dict[Message, int](), dict[Message, int]()
    for order, levels in zip(orders, level_of, strict=True):
        for unit, level in zip(order, levels, strict=True):
            for one in unit:
                if message := messages.sent(one):
                    sent[message] = level
                if message := messages.read(one):
                    read[message] = level
    places = 1
    while any(sent.get((kind, chunk, m + places), level) < level for (kind, chunk, m), level in read.items()):
        places *= 2
    return places


def _repeated(
    orders: Sequence[Sequence[_Unit]], by_level: list[list[tuple[int, int]]], special: Container[Pass]
) -> tuple[int, int]:
    """The first level of a period in which every chunk runs every pass once, and its levels; (0, 0) without one.

    It is followed by the longest run of levels with the same passes of later micro-batches, none of them `special`.
    """
    content = [
        Counter(
            (one.kind, one.chunk, one in special) for stage, index in level for one in orders[stage][index]
        )
        for level in by_level
    ]
    passes = Counter({(kind, chunk, False): 1 for kinds in content for kind, chunk, _ in kinds})
    best = (0, 0, 0)  # how many levels, first, length
    for length in range(1, _LONGEST_PERIOD + 1):
        run = 0
        for level in range(len(content) - 1, -1, -1):
            is_same = level + length < len(content) and content[level] == content[level + length]
            run = run + 1 if is_same else 0
            if run >= length and run > best[0] and sum(content[level : level + length], Counter()) == passes:
                best = (run, level, length)
    return best[1], best[2]
