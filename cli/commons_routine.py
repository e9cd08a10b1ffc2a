"""`kernelcast commons routine`: a batch script that measures, publishes and compares."""

from pathlib import Path

import click

from kernelcast.cli.measuring_options import plan_option
from kernelcast.cli.options import FILE, PATH, database_argument
from kernelcast.cli.terminal import command_line, print_next, say
from kernelcast.runtime.errors import UsageError, either
from kernelcast.runtime.output_file import write_pieces
from kernelcast.store.commons.routine import Routine

_DTYPES = ("float32", "bfloat16", "float16")


@click.command(short_help="Print a Slurm array and a cron line that measure and publish.")
@database_argument
@click.argument("folder", metavar="FOLDER", type=PATH)
@plan_option
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    default=("float32",),
    metavar="NAME",
    help="float32, bfloat16 or float16; repeatable.  [default: float32]",
)
@click.option(
    "--gpus-per-node",
    type=click.IntRange(min=0),
    default=0,
    help="GPUs per node; with 2 or more, collectives are measured too; 0 measures the CPU.",
)
@click.option("--key", type=FILE, help="Sign the index with this SSH key.")
@click.option("--site", default="", help="Public name of the site.  [default: as before, or none]")
@click.option("-o", "--output", type=PATH, metavar="FILE", help="File to write.  [default: print it]")
def routine(
    database_path: Path,
    folder: Path,
    plan: str,
    dtypes: tuple[str, ...],
    gpus_per_node: int,
    key: Path | None,
    site: str,
    output: Path | None,
) -> None:
    """Print a Slurm array that measures what DATABASE lacks, publishes it in FOLDER, and compares it with other sites;
    and a cron line that submits the array every week.

    Points that the database already has for this hardware and software are skipped. After an upgrade of the driver
    all points are measured again. This command only prints: it submits and publishes nothing.

    \b
    kernelcast commons routine bench.db public/commons --gpus-per-node 8 --dtype bfloat16 -o routine.sbatch
    """
    for dtype in dtypes:
        if dtype not in _DTYPES:
            raise UsageError(f"--dtype is {dtype!r:.40}, expected {either(_DTYPES)}")
    found = Routine(
        database=database_path,
        folder=folder,
        plan=plan,
        dtypes=dtypes,
        gpus_per_node=gpus_per_node,
        key=key,
        site=site,
        **({} if output is None else {"name": str(output)}),
    )
    if output is None:
        click.echo(found.script, nl=False)
        return
    write_pieces(output, [found.script])
    say(f"{output}: {len(found.tasks):,} tasks; for crontab -e:")
    click.echo(found.cron)
    dry_run = command_line("commons", "publish", database_path, folder, "--dry-run")
    print_next((dry_run, "what would leave this site"))
