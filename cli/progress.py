"""Shows how far long work is: a bar on a terminal, else a line now and then."""

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

_SECONDS_BETWEEN_LINES = 20.0

Report = Callable[[int, int, str], None]


@contextmanager
def progress(title: str, *, shown: bool = True) -> Iterator[Report]:
    """Yield a function (done, total, what) that shows progress on standard error; not `shown`, it does nothing."""
    if not shown:
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
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None, what="")

        def report(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, what=what)

        yield report


def _lines(title: str) -> Report:
    last = time.monotonic()

    def report(done: int, total: int, what: str) -> None:
        nonlocal last
        if done == total or time.monotonic() - last > _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            click.echo(f"{title}: {done} of {total}", err=True)

    return report
