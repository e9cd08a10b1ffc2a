"""`kernelcast plan fit-failures`: how often nodes fail here, from logs of jobs."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kernelcast.cli import option
from kernelcast.cli.terminal import Facts, Shown, facts, heading, say
from kernelcast.plan.failures import FailureRate, Fit, fit, observed_rate, rate_of
from kernelcast.runtime.estimate.step_spread import StepSpread, own_spread
from kernelcast.runtime.hardware.devices import device_named
from kernelcast.runtime.views.formatting import counted
from kernelcast.store import Database
from kernelcast.store.importers.job_logs import read_failure_log
from kernelcast.store.steps import FailureLog, StepTimes

FORMAT = "kernelcast.failures/1"


@click.command("fit-failures")
@click.argument("paths", nargs=-1, required=True, metavar="LOG...", type=option.PATH)
@option.file("--db", "database_path", "Database to keep the logs in; created if missing.")
@option.text("--device-name", "The device's name, as its vendor writes it.", default="")
@option.count("--gpus-per-node", "Devices per node.", default=8)
@option.count("--nodes", "Nodes of a job, where the log names none (MLPerf).")
@option.text("--reference", "Publication: an address or a citation.", default="")
@option.json
def fit_failures(
    *,
    paths: tuple[Path, ...],
    database_path: Path | None,
    device_name: str,
    gpus_per_node: int,
    **asked: Any,
) -> Shown:
    """Fit the failure rate of nodes to logs of jobs.

    Reads `sacct --json`, CSV with start, end, nodes and outcome (ok or failed), or MLPerf logs. In sacct, jobs
    that ended with NODE_FAIL or BOOT_FAIL count as failures. --db keeps the logs, without names of nodes or users, and
    merges with other databases; `plan --db` reads the rate from it.

    \b
    sacct --json --allusers --starttime 2026-01-01 > jobs.json
    kernelcast plan fit-failures jobs.json --db site.db --device-name 'NVIDIA H100 80GB HBM3'
    """
    logs = [
        read_failure_log(path, device_name=device_name, gpus_per_node=gpus_per_node, **asked)
        for path in paths
    ]
    added = None
    if database_path is not None:
        with Database.open(database_path, create=True) as database:
            added = database.add_all(logs)
    rate, found = rate_from(logs, device_name)
    failures, node_days = sum(one.failures for one in logs), sum(one.node_days for one in logs)
    alone = observed_rate(failures, node_days, gpus_per_node)
    document: dict[str, Any] = {
        "format": FORMAT,
        "jobs": sum(len(one.failed_s) + len(one.ended_s) for one in logs),
        "unreadable": sum(one.unreadable for one in logs),
        "failures": failures,
        "node_days": node_days,
        "causes": dict(sum((Counter(one.causes) for one in logs), Counter[str]()).most_common()),
        "alone": alone.to_dict(),
        "with_published": rate.to_dict(),
        "times": None if found is None else found.to_dict(),
        "added": added,
    }

    def show() -> None:
        _show(document, alone, rate, found)
        if added is not None:
            say(f"{database_path}: {counted(added, 'log')} added")

    return Shown(document, show)


def rate_from(logs: Sequence[FailureLog], device_name: str) -> tuple[FailureRate, Fit | None]:
    """The posterior of published sites and logs, with the shape of times between failures."""
    device = device_named(device_name)
    rate = rate_of(None if device is None else device.architecture)
    for one in logs:
        rate = rate.observing(one.failures, one.node_days, one.gpus_per_node, one.kind)
    found = fit([s for one in logs for s in one.failed_s], [s for one in logs for s in one.ended_s])
    return rate, found


def stored_facts(
    path: Path, device_name: str | None, gpus: int
) -> tuple[FailureRate | None, StepSpread | None]:
    """Rate and spread of steps of the site that a database is from; None where it has no facts.

    Logs of other devices do not count; those without a device do.
    """
    with Database.open(path, read_only=True) as database:
        logs = [one for one in database.records(FailureLog) if one.device_name in ("", device_name)]
        times = [one.times_s for one in database.records(StepTimes) if one.device_name in ("", device_name)]
    return (
        rate_from(logs, device_name or "")[0] if logs else None,
        own_spread(times, gpus) if times else None,
    )


def _show(document: dict[str, Any], alone: FailureRate, rate: FailureRate, found: Fit | None) -> None:
    causes = ", ".join(f"{name} {count:,}" for name, count in document["causes"].items())
    rows: Facts = {
        "jobs": f"{document['jobs']:,} in {document['node_days']:,.1f} node-days, "
        f"{document['unreadable']:,} could not be read",
        "failures": f"{document['failures']:,}{f': {causes}' if causes else ''}",
        "alone": _interval(alone),
        "with published": f"{_interval(rate)} ({rate.origin})",
    }
    if found is not None:
        shape = found.shape_interval
        interval = (
            "too few for a shape" if shape is None else f"shape {shape[0]:.2g} to {shape[1]:.2g} (95 %)"
        )
        gain = f"log-likelihood +{max(0.0, found.gain):.2f}"
        rows["times"] = f"{found.kind}, shape {found.shape:.3g}; {interval}, {gain}"
    click.echo(f"{heading(f'{rate.mean:.3g} failures per 1,000 node-days')}\n\n{facts(rows)}")


def _interval(rate: FailureRate) -> str:
    low, high = rate.interval()
    return f"{rate.mean:.3g} per 1,000 node-days, 90 %: {low:.2g} to {high:.2g}"
