"""`kernelcast trace`: report, diff and export of the traces of real runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kernelcast.cli import option
from kernelcast.cli.tables import text_table
from kernelcast.cli.terminal import Shown, is_quiet, say, warning
from kernelcast.collector.ingest.open_traces import opened_traces
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.output_file import check_target
from kernelcast.runtime.views.formatting import in_words, shortened_apart
from kernelcast.store import Database
from kernelcast.store.trace_difference import Change, TraceComparison, compare_traces
from kernelcast.store.trace_export import write_trace
from kernelcast.store.trace_page import write_difference_page, write_trace_page
from kernelcast.store.trace_report import (
    PART_TITLES,
    Rows,
    TraceReport,
    named_steps,
    report_tables,
    trace_report,
    traced_runs,
)

REPORT_FORMAT = "kernelcast.trace_report/1"
DIFF_FORMAT = "kernelcast.trace_difference/1"
_LONGEST_NAME = 70
_MOST_STEPS = 24  # rows of steps and ranks
_COMPARED = ("kernels", "operators", "modules")

_top_option = option.count("--top", "Maximum number of rows of a table.", default=15)
_run_option = option.text(
    "--run", "run_id", "Start of the run's id.  [default: all]", default="", metavar="ID"
)


@click.group()
def trace() -> None:
    """Report, compare and export traces of real runs.

    \b
    kernelcast trace report rank0.json.gz rank1.json.gz
    kernelcast trace report bench.db --html report.html
    kernelcast trace diff before.json.gz after.json.gz
    kernelcast trace export bench.db -o step.json --step 5
    """


@trace.command(short_help="Show where the time of a step goes.")
@click.argument("traces", nargs=-1, required=True, metavar="DB|TRACE...", type=option.PATH)
@_run_option
@_top_option
@option.flag("--partial", "Read a truncated trace as far as it goes.")
@option.path("--html", "page_path", "Also write an HTML page.")
@option.json
def report(traces: tuple[Path, ...], run_id: str, top: int, partial: bool, page_path: Path | None) -> Shown:
    """Show where the time of a step goes: compute, exposed communication, copies, idle time by cause, longest kernels.

    Takes a database, or traces and folders of traces, which are read into a temporary database; traces of one job's
    ranks become one run. Overlapping kernels of a device count once. Times are means over the annotated steps of all
    ranks.

    \b
    kernelcast trace report profiles/ --html report.html
    """
    if page_path is not None:
        check_target(page_path, "--html")
    notes: list[str] = []
    with opened_traces(traces, is_partial=partial, notes=notes) as database:
        runs = traced_runs(database, run_id)
        if page_path is not None and len(runs) > 1:
            raise UsageError(
                f"--html shows one run, found {len(runs)}; expected --run with the start of one's id"
            )
        reports = [trace_report(database, run, top=top) for run in runs]
        if page_path is not None:
            write_trace_page(database, reports[0], page_path, notes=notes)
    document = {"format": REPORT_FORMAT, "notes": notes, "runs": [_document(one) for one in reports]}
    return Shown(document, lambda: _show(reports, notes), written=page_path)


@trace.command(short_help="Compare two traced runs.")
@click.argument("a", metavar="A", type=option.PATH)
@click.argument("b", metavar="B", type=option.PATH)
@option.text("--run-a", "Start of the run's id in A, if A holds several runs.", default="", metavar="ID")
@option.text("--run-b", "Start of the run's id in B, if B holds several runs.", default="", metavar="ID")
@_top_option
@option.path("--html", "page_path", "Also write an HTML page.")
@option.json
def diff(a: Path, b: Path, run_a: str, run_b: str, top: int, page_path: Path | None) -> Shown:
    """Compare two traced runs, per step and rank: kernels, operators and modules that are slower in B, new, or gone.

    A and B are each a database, a trace, or a folder of traces.

    \b
    kernelcast trace diff before.json.gz after.json.gz
    """
    if page_path is not None:
        check_target(page_path, "--html")
    notes: list[str] = []
    with opened_traces([a], notes=notes) as one, opened_traces([b], notes=notes) as two:
        compared = compare_traces(
            one, _only_run(one, run_a, "--run-a"), two, _only_run(two, run_b, "--run-b")
        )
    if page_path is not None:
        write_difference_page(compared, a.name, b.name, page_path, notes=notes)
    document = {"format": DIFF_FORMAT, "notes": notes, **_difference(compared)}
    return Shown(document, lambda: _show_difference(compared, notes, top), written=page_path)


@trace.command(short_help="Export a stored trace as a Chrome trace.")
@click.argument("database_path", metavar="DB|TRACE", type=option.PATH)
@option.path("-o", "--output", "target", "File to write.", required=True)
@_run_option
@option.text("--rank", "Rank to export, if the run has several.", type=int)
@option.text("--step", "Only this step, by name or number.", default="")
def export(database_path: Path, target: Path, run_id: str, rank: int | None, step: str) -> None:
    """Export a rank's events as a Chrome trace, for ui.perfetto.dev or ingest.

    \b
    kernelcast trace export bench.db --rank 1 --step 5 -o step.json
    """
    check_target(target, "--output")
    notes: list[str] = []
    with opened_traces([database_path], notes=notes) as database:
        run = _only_run(database, run_id, "--run")
        count = write_trace(database, run, target, rank=rank, step=step)
    _warn(notes)
    say(f"{target}: {count:,} events")


def _warn(notes: Sequence[str]) -> None:
    for note in () if is_quiet() else notes:
        click.echo(warning(note), err=True)


def _only_run(database: Database, run_id: str, name: str) -> str:
    runs = traced_runs(database, run_id)
    if len(runs) > 1:
        listed = ", ".join(run[:12] for run in runs)
        raise UsageError(f"{name}: found {len(runs)} runs ({listed}), expected the start of one's id")
    return runs[0]


def _document(one: TraceReport) -> dict[str, Any]:
    return {
        **values_of(one, "run_id", "hardware", "software"),
        "mean_step": one.parts_ms,
        "findings": [
            values_of(finding, "kind", "rank", "group_ranks", "delay_ms", "line") for finding in one.findings
        ],
        **values_of(one, *(table.name for table in report_tables())),
    }


def _show(reports: Sequence[TraceReport], notes: Sequence[str]) -> None:
    _warn(notes)
    for one in reports:
        _show_report(one)


def _show_report(one: TraceReport) -> None:
    parts = one.parts_ms
    step_ms = sum(parts.values())
    say(f"run {one.run_id[:12]} on {one.hardware} ({one.software})\n")
    rows = [
        (PART_TITLES[part], f"{ms:,.3f}", f"{100 * ms / step_ms:.1f} %" if step_ms else "")
        for part, ms in parts.items()
        if ms
    ]
    click.echo(text_table(("mean step", "ms", "share"), [*rows, ("step", f"{step_ms:,.3f}", "")]))
    for finding in one.findings:
        say(f"\n{finding.line}")
    if is_quiet():
        return
    shown, left = named_steps(one.steps[:_MOST_STEPS]), len(one.steps) - _MOST_STEPS
    title = "steps" if left <= 0 else f"steps ({left:,} more with --json)"
    _print(title, shown, ("rank", "step", "device_ms", "compute_ms", "exposed_communication_ms", "memory_ms",
                                "idle_ms", "idle_host_ms", "overlapped_percent", "in_mean"))  # fmt: skip
    for table in report_tables():
        if table.name not in ("steps", "streams"):
            _print(table.title, getattr(one, table.name))
    click.echo()


def _print(title: str, rows: Rows, columns: Sequence[str] = ()) -> None:
    if not rows:
        return
    columns = columns or [name for name in rows[0] if not name.endswith("_id")]
    shown = zip(*(_cells([row[name] for row in rows]) for name in columns), strict=True)
    say(f"\n{title}")
    click.echo(text_table([in_words(name) for name in columns], list(shown)))


def _cells(values: Sequence[Any]) -> list[str]:
    texts = [value if isinstance(value, str) else "" if value is None else f"{value:,}" for value in values]
    return shortened_apart(texts, _LONGEST_NAME)


def _difference(compared: TraceComparison) -> dict[str, Any]:
    def listed(change: Change) -> dict[str, Any]:
        return {
            "name": change.name,
            "class": change.class_,
            "change": change.kind,
            **values_of(change, "one_ms", "two_ms", "change_ms", "one_launches", "two_launches"),
        }

    return {
        "one_steps": compared.one_steps,
        "two_steps": compared.two_steps,
        "step": listed(compared.step),
        "parts": [listed(part) for part in compared.parts],
        "causes": [values_of(cause, "kind", "name", "change_ms", "line") for cause in compared.causes],
        **{name: [listed(one) for one in getattr(compared, name)] for name in _COMPARED},
    }


def _show_difference(compared: TraceComparison, notes: Sequence[str], top: int) -> None:
    _warn(notes)

    def row(name: str, change: Change) -> tuple[str, ...]:
        percent = f"{100 * change.change_ms / change.one_ms:+.1f} %" if change.one_ms else ""
        times = ("" if ms is None else f"{ms:,.3f}" for ms in (change.one_ms, change.two_ms))
        return (name, *times, f"{change.change_ms:+,.3f}", percent)

    say(f"per step and rank; steps: {compared.one_steps} of A, {compared.two_steps} of B\n")
    parts = [row(PART_TITLES[part.name], part) for part in compared.parts if part.one_ms or part.two_ms]
    click.echo(
        text_table(("part", "A ms", "B ms", "change ms", "change"), [*parts, row("step", compared.step)])
    )
    if compared.causes:
        say("\ncauses, largest first (they add up to the change, apart from a slowdown of most kernels)")
    for cause in compared.causes:
        say(f"  {cause.line}")
    if is_quiet():
        return
    for title in _COMPARED:
        changed = [one for one in getattr(compared, title) if one.kind][:top]
        if not changed:
            continue
        names = shortened_apart([one.name for one in changed], _LONGEST_NAME)
        rows = [
            (*row(name, one), one.kind, *map(_launches, (one.one_launches, one.two_launches)))
            for name, one in zip(names, changed, strict=True)
        ]
        headers = (title[:-1], "A ms", "B ms", "change ms", "change", "", "A launches", "B launches")
        click.echo()
        click.echo(text_table(headers, rows))


def _launches(count: float | None) -> str:
    return "" if count is None else f"{count:,.1f}".removesuffix(".0")
