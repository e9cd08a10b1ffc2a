"""What was read of a trace, in a temporary file: a process that reads many ranks holds one of them in memory."""

import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kernelcast.store import Sample, TracedEvent, TracedStep
from kernelcast.store.runs import HostTime, StreamWait


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What is stored of one trace. Samples have no run yet, and events name them by their position."""

    samples: tuple[Sample, ...]
    steps: tuple[TracedStep, ...]
    host: tuple[HostTime, ...]
    waits: tuple[StreamWait, ...]
    events: Iterable[TracedEvent]


def write_spool(path: Path, content: Content) -> None:
    """Write a content into a file."""
    with path.open("wb") as file:
        pickle.dump(content, file, protocol=pickle.HIGHEST_PROTOCOL)


def read_spool(path: Path) -> Content:
    """The content of a file."""
    with path.open("rb") as file:
        content: Content = pickle.load(file)
    return content
