"""Progress and remaining time of long work: a bar on a terminal, else a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from kernelcast.cli.terminal import controlling, is_quiet, printable_streams
from kernelcast.runtime.errors import printable

_SECONDS_BETWEEN_LINES = 20.0
# One regressor or sample may take minutes: the estimate averages over all work, not the last 30 s.
_ESTIMATE_PERIOD_S = 24 * 3600.0
_LEAST_SHARE = 0.1  # of the work, before an estimate is printed

Report = Callable[[int, int, str], None]


@contextmanager
def progress(title: str, *, shown: bool = True) -> Iterator[Report]:
    """Yield a function (done, total, what) that shows progress on standard error, if `shown` and not quiet."""
    if not shown or is_quiet():
        yield lambda done, total, what: None
    elif sys.stderr.isatty():
        with _bar(title) as report:
            yield report
    else:
        yield _lines(title)


@contextmanager
def _bar(title: str) -> Iterator[Report]:
    from rich.console import Console

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}", markup=False),
    )
    console = Console(file=controlling(sys.stderr))
    # The bar replaces standard output and error, to print above itself: wrap them again.
    with (
        Progress(*columns, console=console, speed_estimate_period=_ESTIMATE_PERIOD_S) as bar,
        printable_streams(),
    ):
        task = bar.add_task(printable(title), total=None, what="")

        def report(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, what=printable(what))

        yield report


def _lines(title: str) -> Report:
    started = last = time.monotonic()

    def report(done: int, total: int, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if done == total or now - last > _SECONDS_BETWEEN_LINES:
            last = now
            # Assumes equal pieces of work.
            known = _LEAST_SHARE <= done / total < 1
            left = f", about {span((now - started) / done * (total - done))} left" if known else ""
            click.echo(f"{title}: {done} of {total}{left}", err=True)

    return report


def span(seconds: float) -> str:
    """A rough length of time: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
