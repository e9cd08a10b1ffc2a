"""`kernelcast import mlperf`: times of single steps."""

from pathlib import Path

import click

from kernelcast.cli.options import PATH, Shown, database_option, json_option
from kernelcast.cli.tables import print_table
from kernelcast.cli.terminal import is_quiet, say
from kernelcast.runtime.estimate.step_spread import shares_of
from kernelcast.runtime.views.formatting import seconds
from kernelcast.store import Database
from kernelcast.store.importers.job_logs import read_mlperf_steps
from kernelcast.store.operation import StepTimes
from kernelcast.store.statistics import percentile

FORMAT = "kernelcast.imported-steps/1"


@click.command("mlperf")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=PATH)
@database_option("Database to write; created if missing.")
@click.option("--gpus", type=click.IntRange(min=1), required=True, help="Devices of the run.")
@click.option("--device-name", default="", help="The device's name, as its vendor writes it.")
@click.option("--licence", default="", help="Licence of the data, SPDX where possible.")
@click.option("--reference", default="", help="Publication: an address or a citation.")
@json_option
def mlperf(
    *, paths: tuple[Path, ...], database_path: Path, gpus: int, device_name: str, licence: str, reference: str
) -> Shown:
    """Import times of single steps from MLPerf Training logs (train_step_time), also gzipped.

    `plan --db` takes the scatter of steps from them.

    \b
    kernelcast import mlperf result_0.txt --db site.db --gpus 512 --device-name 'NVIDIA B200'
    """
    found = [
        read_mlperf_steps(path, gpus=gpus, device_name=device_name, licence=licence, reference=reference)
        for path in paths
    ]
    with Database.open(database_path, create=True) as database:
        added = database.add_all(found)
    rows = [_values(one) for one in found]

    def show() -> None:
        if not is_quiet():
            print_table(
                found,
                ("benchmark", lambda one: one.model_name),
                ("publisher", lambda one: one.publisher),
                ("steps", lambda one: f"{len(one.times_s):,}"),
                ("p50", lambda one: seconds(percentile(one.times_s, 0.5))),
                ("p90 / p50", lambda one: f"{shares_of(one.times_s).p90:.4f}"),
                ("p99 / p50", lambda one: f"{shares_of(one.times_s).p99:.4f}"),
                ("start", lambda one: "" if one.start_s is None else seconds(one.start_s)),
            )
        say(f"{database_path}: {added:,} of {len(found):,} runs added")

    return Shown({"format": FORMAT, "added": added, "runs": rows}, show)


def _values(one: StepTimes) -> dict[str, object]:
    shares = shares_of(one.times_s)
    return {
        "publisher": one.publisher,
        "benchmark": one.model_name,
        "gpus": one.gpus,
        "steps": len(one.times_s),
        "p50_s": percentile(one.times_s, 0.5),
        "p90": shares.p90,
        "p99": shares.p99,
        "mean": shares.mean,
        "start_s": one.start_s,
    }
