"""What was read of a trace, in temporary files: a process that reads many ranks holds one of them in memory."""

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kernelcast.store import EventKind, Sample, TracedEvent, TracedStep
from kernelcast.store.runs import HostTime

_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What is stored of one trace. Samples have no run yet, and events name them by their position."""

    samples: tuple[Sample, ...]
    steps: tuple[TracedStep, ...]
    host: tuple[HostTime, ...]
    events: Iterable[TracedEvent]


@dataclass(frozen=True, slots=True)
class _SpooledEvents:
    path: Path
    kinds: list[EventKind]

    def __iter__(self) -> Iterator[TracedEvent]:
        with self.path.open("rb") as file:
            while batch := pickle.load(file):
                for kind, *values in batch:
                    yield TracedEvent(self.kinds[kind], *values)


def write_spool(path: Path, content: Content) -> None:
    """Write a content into two files that begin with `path`."""
    numbers: dict[int, int] = {}
    kinds: list[EventKind] = []
    batch: list[tuple[object, ...]] = []
    with path.with_suffix(".events").open("wb") as file:
        for kind, *values in content.events:
            if id(kind) not in numbers:
                numbers[id(kind)] = len(kinds)
                kinds.append(kind)
            batch.append((numbers[id(kind)], *values))
            if len(batch) == _AT_ONCE:
                pickle.dump(batch, file)
                batch = []
        for last in (batch, []) if batch else ([],):
            pickle.dump(last, file)
    with path.open("wb") as file:
        pickle.dump((replace(content, events=()), kinds), file)


def read_spool(path: Path) -> Content:
    """The content; its events are read while they are iterated."""
    with path.open("rb") as file:
        content: Content
        content, kinds = pickle.load(file)
    return replace(content, events=_SpooledEvents(path.with_suffix(".events"), kinds))
