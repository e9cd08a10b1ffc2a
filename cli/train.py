"""`kernelcast train`."""

import json
from pathlib import Path

import click

from kernelcast.cli.options import database_option
from kernelcast.cli.progress import progress
from kernelcast.cli.tables import text_table
from kernelcast.store import Database
from kernelcast.train.dataset import STATISTICS
from kernelcast.train.fit import DEFAULT_SEED, LARGEST_SEED, Trained, train_bundle

FORMAT = "kernelcast.training/1"


@click.command()
@database_option("The database with the measurements.")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The bundle."
)
@click.option(
    "--statistic",
    type=click.Choice(STATISTICS),
    default="quiet",
    show_default=True,
    help="Which time of the repetitions: 10th percentile, or the paper's mean of the middle five.",
)
@click.option("--dtype", default="", help="Which dtype, where several were measured.")
@click.option("--hardware", default="", help="Start of a hardware id, where the database holds several.")
@click.option("--software", default="", help="Start of a software id, where the database holds several.")
@click.option("--fabric", default="", help="Start of a fabric id, where the database holds several.")
@click.option(
    "--seed",
    type=click.IntRange(0, LARGEST_SEED),
    default=DEFAULT_SEED,
    show_default=True,
    help="Seed of the splits and the trees.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def train(
    database_path: Path,
    output: Path,
    statistic: str,
    dtype: str,
    hardware: str,
    software: str,
    fabric: str,
    seed: int,
    as_json: bool,
) -> None:
    """Fit one regressor per operator and direction, export each to ONNX, and write them as one bundle.

    Their errors are recorded in the database too (view predictor_error).

    \b
    kernelcast train --db bench.db -o here.kcast
    """
    with Database.open(database_path) as database, progress("regressors") as report:
        trained = train_bundle(
            database,
            output,
            statistic=statistic,
            dtype=dtype,
            hardware=hardware,
            software=software,
            fabric=fabric,
            seed=seed,
            on_progress=report,
        )
    if as_json:
        click.echo(json.dumps(_document(trained), indent=2))
    else:
        show_training(trained)


def show_training(trained: Trained) -> None:
    """Print the error table, what was left out, and the mean."""
    rows = [
        (
            entry.operator,
            entry.direction.value,
            str(entry.rows),
            entry.algorithm,
            entry.form,
            f"{entry.validation_error:.1%}",
            f"{entry.size_bytes / 1000:.0f} kB",
        )
        for entry in trained.manifest.regressors
    ]
    heads = ("operator", "direction", "rows", "algorithm", "baseline", "error", "size")
    click.echo(text_table(heads, rows))
    for skipped in trained.skipped:
        click.echo(f"left out: {skipped.operator} ({skipped.direction}): {skipped.reason}")
    count = len(trained.manifest.regressors)
    click.echo(
        f"{trained.path}: {count} regressors, mean validation error {trained.mean_validation_error:.1%}"
    )


def _document(trained: Trained) -> dict[str, object]:
    return {
        "format": FORMAT,
        "bundle": str(trained.path),
        "bundle_digest": trained.digest,
        "mean_validation_error": trained.mean_validation_error,
        "operators": [
            {
                "operator": entry.operator,
                "direction": entry.direction.value,
                "rows": entry.rows,
                "algorithm": entry.algorithm,
                "form": entry.form,
                "error": entry.validation_error,
                "size_bytes": entry.size_bytes,
            }
            for entry in trained.manifest.regressors
        ],
        "skipped": [
            {"operator": s.operator, "direction": s.direction, "reason": s.reason} for s in trained.skipped
        ],
    }
