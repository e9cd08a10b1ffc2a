"""`kernelcast ingest`: traces of real runs into a database."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kernelcast.cli import option
from kernelcast.cli.tables import print_table, text_table
from kernelcast.cli.terminal import Shown, is_quiet, say
from kernelcast.collector.ingest import Ingested, ingest_traces, operator_counts
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.views.formatting import shortened_apart

FORMAT = "kernelcast.ingested/1"
_MOST_SHOWN = 10
_LONGEST_NAME = 60


@click.command()
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...", type=option.PATH)
@option.database("Database to write; created if missing.")
@option.text("--site", "Site that ran it, as free text.", default="")
@option.count(
    "--gpus-per-node",
    "Devices (or processes) per node, for traces that do not record it; nodes hold consecutive ranks.",
)
@option.size("--max-size", "max_bytes", "Refuse a trace whose unpacked size is larger.", default="2GiB")
@option.flag("--partial", "is_partial", "Read a truncated trace as far as it goes.")
@option.json
def ingest(traces: tuple[Path, ...], database_path: Path, gpus_per_node: int | None, **asked: Any) -> Shown:
    """Add PyTorch-profiler traces of real runs to a database: kernels, and the operators recognised in them.

    Traces of the ranks of one job, given together, become one run. Either all files are stored or none; files already
    stored are skipped. Kernels that are not recognised are kept and counted. train uses traces only with --traces.

    \b
    kernelcast ingest rank0.pt.trace.json.gz rank1.pt.trace.json.gz --db bench.db
    """
    done = ingest_traces(traces, database_path, gpus_per_node=gpus_per_node or 0, **asked)
    return Shown(_document(done), lambda: _show(done, database_path))


def _show(done: Sequence[Ingested], database_path: Path) -> None:
    new = [one for one in done if one.is_new]
    if new and not is_quiet():
        _print_files(new)
        _print_operators(new)
        _print_left(new)
    added = sum(len(one.samples) for one in new)
    there = f", {len(done) - len(new)} already there" if len(new) < len(done) else ""
    runs = len({one.trace.run_id for one in new if one.trace})
    say(f"{database_path}: {len(new)} trace(s) of {runs} run(s) added, {added:,} samples{there}")


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else ""


def _print_files(new: Sequence[Ingested]) -> None:
    print_table(
        [(one, one.trace) for one in new if one.trace is not None],
        ("trace", lambda row: row[0].path.name),
        ("device", lambda row: row[0].device),
        ("rank", lambda row: "" if row[1].rank is None else str(row[1].rank)),
        ("events", lambda row: f"{row[1].event_count:,}"),
        ("kernels", lambda row: f"{row[1].kernel_count:,}"),
        ("kernels ms", lambda row: f"{row[1].kernel_us / 1e3:,.3f}"),
        ("attributed %", lambda row: _percent(row[1].attributed_us, row[1].kernel_us)),
        ("recognised %", lambda row: _percent(row[1].recognised_us, row[1].kernel_us)),
    )
    for one in new:
        for note in one.notes:
            say(f"{one.path.name}: {note}")


def _print_operators(new: Sequence[Ingested]) -> None:
    counts = operator_counts(new)
    different = {
        (s.operator, s.role, s.direction.value, s.dtype, s.vector, s.variant) for o in new for s in o.samples
    }
    workloads = Counter(one[:4] for one in different)
    if counts:
        rows = [(*key, f"{workloads[key]:,}", f"{count:,}") for key, count in sorted(counts.items())]
        click.echo()
        click.echo(text_table(("operator", "role", "direction", "dtype", "workloads", "occurrences"), rows))


def _print_left(new: Sequence[Ingested]) -> None:
    totals: dict[tuple[str, str, str], tuple[int, float]] = {}
    for one in new:
        for kernels in one.unrecognised:
            key = (kernels.host_operator, kernels.name, kernels.reason)
            count, total_us = totals.get(key, (0, 0.0))
            totals[key] = count + kernels.kernel_count, total_us + kernels.total_us
    if not totals:
        return
    shown = sorted(totals.items(), key=lambda entry: (-entry[1][1], entry[0]))[:_MOST_SHOWN]
    names = shortened_apart([name for (_, name, _), _ in shown], _LONGEST_NAME)
    rows = [
        (host or "-", name, f"{count:,}", f"{total_us / 1e3:,.3f}", reason)
        for name, ((host, _, reason), (count, total_us)) in zip(names, shown, strict=True)
    ]
    click.echo()
    say(f"not recognised: {len(totals):,} kernels; the longest:")
    click.echo(text_table(("host operator", "kernel", "launches", "total ms", "reason"), rows))


def _document(done: Sequence[Ingested]) -> dict[str, object]:
    return {
        "format": FORMAT,
        "traces": [_file_document(one) for one in done],
        "operators": [
            {"operator": operator, "role": role, "direction": direction, "dtype": dtype, "occurrences": count}
            for (operator, role, direction, dtype), count in sorted(operator_counts(done).items())
        ],
    }


def _file_document(one: Ingested) -> dict[str, object]:
    trace = one.trace
    if trace is None:
        return {"file": one.path.name, "added": False}
    return {
        "file": one.path.name,
        "added": True,
        "run_id": trace.run_id,
        "device": one.device,
        "notes": list(one.notes),
        **values_of(trace, "rank", "world_size", events="event_count", kernels="kernel_count"),
        **values_of(trace, "kernel_us", "attributed_us", recognised_kernels="recognised_count"),
        "recognised_us": trace.recognised_us,
        "samples": len(one.samples),
        "unrecognised": [
            values_of(kernels, "host_operator", kernel="name")
            | values_of(kernels, "category", "stream", "shapes", "reason", launches="kernel_count")
            | {"total_us": kernels.total_us}
            for kernels in sorted(one.unrecognised, key=lambda k: -k.total_us)
        ],
    }
