"""`kernelcast train`."""

import math
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from kernelcast.cli import option
from kernelcast.cli.fields import read_prior
from kernelcast.cli.progress import progress
from kernelcast.cli.tables import print_table, text_table
from kernelcast.cli.terminal import Shown, command_line, is_quiet, print_next, say
from kernelcast.runtime.bundle.file import read_bundle
from kernelcast.runtime.bundle.regressor_entry import STATISTICS, HeldOut
from kernelcast.runtime.views.formatting import amount, percent, table_texts
from kernelcast.store.doubts import doubts_text
from kernelcast.train.fit import DEFAULT_SEED, LARGEST_SEED, Trained, open_measurements, train_bundle
from kernelcast.train.report.figures import TrainingFigures, figures, table_rows
from kernelcast.train.report.page import check_directory, write_report
from kernelcast.train.report.reference import Reference

seed_option = option.text(
    "--seed", "Seed of the splits and the trees.", type=click.IntRange(0, LARGEST_SEED), default=DEFAULT_SEED
)

jobs_option = option.text(
    "--jobs",
    "Number of fitting processes; 0 for one per core, if that is faster.",
    type=click.IntRange(min=0),
    default=0,
)


@click.command()
@option.database("Database with the measurements.")
@option.file("-o", "--output", "Bundle to write.", required=True)
@option.choice(
    tuple(STATISTICS),
    "--statistic",
    "Time of a sample: quiet, the 10th percentile of its repetitions, or the paper's mean of the middle five.  "
    "[default: quiet, if all samples have repetitions]",
)
@option.text("--dtype", "Dtype to train on, if several were measured.", default="", metavar="NAME")
@option.fingerprint("hardware", "Start of the hardware id, if the database holds several.")
@option.fingerprint("software", "Start of the software id, if the database holds several.")
@option.fingerprint("fabric", "Start of the fabric id, if the database holds several.")
@option.flag("--traces", "Also train on samples ingested from traces of real runs.")
@option.text(
    "--only-origin",
    "Train only on samples of this merge, by the start of its id (db info); own: samples that no merge added.",
    default="",
    metavar="MERGE",
)
@seed_option
@jobs_option
@option.file(
    "--from",
    "earlier_path",
    "Reuse regressors of an earlier bundle whose rows and settings are unchanged.",
    metavar="OLD",
)
@option.prior
@option.path(
    "--report", "report_directory", "Write a page with tables and plots to DIR/index.html.", metavar="DIR"
)
@option.path(
    "--compare-with",
    "reference_directory",
    "Folder of the paper's data: compare with its published errors.",
    metavar="DIR",
)
@option.json
def train(
    database_path: Path,
    output: Path,
    statistic: str | None,
    earlier_path: Path | None,
    prior: str | None,
    report_directory: Path | None,
    reference_directory: Path | None,
    **asked: Any,
) -> Shown:
    """Fit one regressor per operator and direction, export each to ONNX, and write them as one bundle.

    Validation errors are also stored in the database (view predictor_error).

    \b
    kernelcast train --db bench.db -o here.kcast
    kernelcast train --db bench.db -o here.kcast --report here-report
    kernelcast train --db few.db -o new.kcast --prior a100-sxm
    """
    # What can be refused is refused before the long work.
    if report_directory:
        check_directory(report_directory)
    reference = Reference.read(reference_directory) if reference_directory else None
    earlier = read_bundle(earlier_path) if earlier_path else None
    prior_bundle = None if prior is None else read_prior(prior)
    with open_measurements(database_path) as database, progress("regressors") as report:
        trained = train_bundle(
            database,
            output,
            statistic=statistic or "",
            earlier=earlier,
            prior=prior_bundle,
            on_progress=report,
            **asked,
        )
    found, page = figures(trained, reference), None
    if report_directory:
        with progress("report") as report:
            page = write_report(found, report_directory, on_progress=report)

    def show() -> None:
        _show(found)
        errors = [role.reference_error for operator in found.operators for role in operator.roles]
        if reference and not any(error is not None for error in errors):
            say(f"reference {reference.directory}: no errors of these operators in {trained.manifest.dtype}")
        if page:
            say(f"report: {page}")
        example = ("--model", "llama-3.2-1b", "--micro-batch", 1, "--micro-batches", 8)
        print_next(
            (command_line("predict", "--bundle", output, *example), "other models: kernelcast models"),
            (command_line("bundle", "info", output), "regressors and their errors"),
        )

    return Shown(found.to_dict(), show)


def show_training(trained: Trained) -> None:
    """Print the error table, skipped operators and mean errors; with --quiet only the means."""
    _show(figures(trained))


def _show(found: TrainingFigures) -> None:
    if not is_quiet():
        optional = ("size", "form", "algorithm", "coverage", "range")
        click.echo(text_table(*table_texts(table_rows(found)), optional=optional))
        show_doubts(found)
    show_loads(found)
    if found.trained.prior is not None:
        say(f"prior: {found.trained.prior.name}; times are scaled by {found.trained.prior.scaled_by}")
        if carried := [one.name for one in found.operators if one.is_carried]:
            say(f"taken from the prior, without points of their own: {'; '.join(carried)}")
    taken = sum(one.selected is None and one.prior is None for one in found.operators)
    say(
        f"{found.trained.path}: {len(found.operators)} regressors{f' ({taken} taken over)' if taken else ''}, "
        f"{amount(found.size_bytes, 'B')}, mean validation error {percent(found.mean_validation_error)}"
    )


def show_loads(found: TrainingFigures) -> None:
    """Print the load under which operators were measured, and the ratio of both loads if both were."""
    if any(operator.entry.load for operator in found.operators):
        say(f"load of the device: {found.trained.manifest.loads} (of regressors)")
    if ratios := found.trained.load_ratios:
        print_table(
            ratios,
            ("operator", lambda one: one.operator),
            (
                "direction",
                lambda one: f"{one.direction}{f' ×{n}' if (n := one.processes_per_node) > 1 else ''}",
            ),
            ("measured under both", lambda one: f"{one.workloads:,}"),
            ("sustained / burst", lambda one: f"{one.median:.3f}"),
            ("80 % of them", lambda one: f"{one.low:.3f} to {one.high:.3f}"),
        )


def show_doubts(found: TrainingFigures) -> None:
    """Print skipped operators, doubtful samples and mean errors of groups of rows."""
    trained = found.trained
    for skipped in trained.skipped:
        say(f"left out: {skipped}")
    if trained.without_quiet:
        say(
            f"statistic: {trained.manifest.statistic}, as {trained.without_quiet:,} of {trained.samples:,} samples "
            "have no repetitions"
        )
    if doubts := doubts_text(trained.doubts, trained.samples):
        say(f"doubtful: {doubts}")
    for note in trained.notes:
        say(f"note: {note}")
    if outliers := [len(operator.outliers) for operator in found.operators if operator.outliers]:
        say(
            f"outliers: {sum(outliers):,} of {found.rows:,} rows, in {len(outliers)} regressors (--json lists them)"
        )
    for name, value in (
        ("mean error of collectives", found.mean_collective_error),
        ("mean error of the reference", found.mean_reference_error),
        ("mean error on extrapolated sizes", found.mean_extrapolation_error),
        ("held-out rows within their 90 % interval", found.mean_coverage),
    ):
        if value is not None:
            say(f"{name}: {percent(value)}")
    for kind, of_kind in groupby(found.held_out, key=lambda one: one.kind):
        parts = [_coverage(one) for one in of_kind]
        say(f"held-out {kind}s within their interval: {', '.join(parts)}")


def _coverage(one: HeldOut) -> str:
    """Such as `92 % of 1,234 rows up to 2 doublings outside`."""
    share = f"{percent(one.inside)} of {one.rows:,} rows"
    if one.kind == "role":
        return share
    if math.isinf(one.doublings):
        return f"{share} further outside"
    return f"{share} up to {one.doublings:g} doubling{'s' if one.doublings > 1 else ''} outside"
