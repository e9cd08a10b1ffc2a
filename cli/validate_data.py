"""`kernelcast validate published`, `fabrics` and `prior`: predictions of published steps, collectives and operators."""

from pathlib import Path
from typing import Any

import click

from kernelcast.cli import option
from kernelcast.cli.fields import read_prior
from kernelcast.cli.progress import progress
from kernelcast.cli.tables import print_table, signed_percent, text_table
from kernelcast.cli.terminal import Shown, is_quiet, say
from kernelcast.cli.train import jobs_option, seed_option, show_doubts
from kernelcast.runtime.bundle.file import read_bundle
from kernelcast.runtime.estimate.doubts import warning_lines
from kernelcast.runtime.views.formatting import percent, seconds
from kernelcast.store import Database
from kernelcast.validate.comparison import ComparedRun
from kernelcast.validate.fabrics import (
    MOST_ACROSS,
    MOST_DESCRIBED,
    MOST_EXTENDED,
    FabricValidation,
    validate_fabrics,
)
from kernelcast.validate.prior import PriorValidation, validate_prior
from kernelcast.validate.published import Published, published_runs, validate_published


@click.command(short_help="Predict the paper's published steps from its operator data.")
@click.argument("directory", metavar="DIR", type=option.PATH)
@option.text(
    "--runs",
    "runs_name",
    "Measured steps (TOML), or a site whose steps ship.  [default: the name of DIR]",
    metavar="FILE",
    default="",
)
@option.file("--db", "database_path", "Database for the imported rows.", metavar="FILE")
@option.file("-o", "--output", "Bundle to write.")
@option.file(
    "--from",
    "earlier_path",
    "Reuse regressors of an earlier bundle whose rows and settings are unchanged.",
    metavar="OLD",
)
@option.text("--dtype", "Dtype to use, if DIR holds several.", default="", metavar="NAME")
@seed_option
@jobs_option
@option.json
def published(directory: Path, runs_name: str, earlier_path: Path | None, **asked: Any) -> Shown:
    """Predict published training steps from operators measured at the same site.

    DIR is the folder of a site in the paper's data (estimate-train-time). The data is imported, regressors are trained
    on it (minutes), and every step is predicted by the paper's closed form and by simulation, without calibration.

    \b
    kernelcast validate published Perlmutter
    kernelcast validate published Perlmutter -o perlmutter.kcast
    kernelcast validate published Perlmutter --from perlmutter.kcast --json
    """
    runs = published_runs(directory, runs_name)
    earlier = read_bundle(earlier_path) if earlier_path else None
    with (
        progress("files") as on_import,
        progress("regressors") as on_train,
        progress("their regressors") as on_imply,
    ):
        found = validate_published(
            directory,
            runs,
            earlier=earlier,
            **asked,
            on_import=on_import,
            on_train=on_train,
            on_imply=on_imply,
        )
    return Shown(found.to_dict(), lambda: _show_published(found))


def _show_published(found: Published) -> None:
    for run in () if is_quiet() else found.runs:
        _show_components(run)
    say(f"\n{found.file.site}: {found.file.hardware}")
    rows = [
        (
            run.run.label,
            seconds(run.run.measured_s),
            seconds(run.closed_form.step_time_s),
            signed_percent(run.error, 2),
            _run_interval(run),
            seconds(run.simulated.step_time_s),
            signed_percent(run.simulated_error, 2),
            signed_percent(run.run.published_error, 2),
        )
        for run in found.runs
    ]
    means = (
        percent(found.mean_abs_error, digits=2),
        percent(found.mean_abs_simulated_error, digits=2),
        percent(found.mean_abs_published_error, digits=2),
    )
    inside = [run.is_inside for run in found.runs if run.is_inside is not None]
    held = f"{sum(inside)} of {len(inside)} inside" if inside else ""
    rows.append(("mean of absolute errors", "", "", means[0], held, "", means[1], means[2]))
    heads = (
        "model (pp-tp-dp)",
        "measured",
        "closed form",
        "error",
        "90 % interval",
        "simulated",
        "error",
        "published error",
    )
    click.echo(text_table(heads, rows))
    if is_quiet():
        return
    say(f"measured: {found.file.source}; no calibration")
    show_doubts(found.training)
    trained = found.trained
    taken = f" ({found.taken_over} taken over)" if found.taken_over else ""
    say(
        f"{len(trained.manifest.regressors)} regressors{taken}, "
        f"mean validation error {percent(found.mean_validation_error, digits=2)}"
    )


def _show_components(run: ComparedRun) -> None:
    components = run.components()
    if all(one.measured_s is None for one in components):
        return
    say(f"\n{run.run.label}")
    print_table(
        components,
        ("component", lambda one: one.name),
        ("predicted", lambda one: seconds(one.predicted_s)),
        ("measured", lambda one: f"{'≈ ' * one.implied}{seconds(one.measured_s)}" if one.measured_s else "-"),
        ("error", lambda one: signed_percent(one.error, 2)),
        ("published error", lambda one: signed_percent(one.published_error, 2)),
        indent="  ",
    )
    for line in warning_lines(run.closed_form.doubts):
        say(f"  note: {line}")
    if run.implied_step_s is not None:
        say(
            f"  ≈ implied by the published errors and the authors' regressors, refitted; these add up to "
            f"{seconds(run.implied_step_s)}, measured {seconds(run.run.measured_s)}"
        )


def _run_interval(run: ComparedRun) -> str:
    interval_s = run.closed_form.interval_s
    return "-" if interval_s is None else " to ".join(map(seconds, interval_s))


@click.command(short_help="Predict published collectives from descriptions of their fabrics.")
@click.argument("directory", metavar="DIR", type=option.PATH)
@option.json
def fabrics(directory: Path) -> Shown:
    """Predict published collectives from descriptions of their fabrics, and from rows of other layouts.

    DIR holds the published rows: vtrain/, vidur/, aiconfigurator/ and nccl-tests/. Predicted rows are held
    out. Exit status 1 if a median error exceeds its limit.

    \b
    kernelcast validate fabrics data
    """
    found = validate_fabrics(directory)
    return Shown(found.to_dict(), lambda: _show_fabrics(found), status=0 if found.holds else 1)


def _show_fabrics(found: FabricValidation) -> None:
    click.echo("All-reduce in A100 nodes above 32 MiB, described, efficiency from the other sources")
    devices = sorted({count for one in found.described for count in one.by_devices})
    print_table(
        found.described,
        ("source", lambda one: one.source),
        ("efficiency", lambda one: f"{one.efficiency:.3f}"),
        ("median", lambda one: percent(one.median_error)),
        ("signed", lambda one: signed_percent(one.median_signed_error)),
        *((f"1 × {count}", lambda one, count=count: percent(one.by_devices.get(count))) for count in devices),
        ("rows", lambda one: f"{one.rows:,}"),
    )
    click.echo(f"limit: {percent(MOST_DESCRIBED)}\n\n1 × 8 from the same source's rows of 1 × 2 and 1 × 4")
    print_table(
        found.extended,
        ("source", lambda one: one.source),
        ("median", lambda one: percent(one.median_error)),
        ("signed", lambda one: signed_percent(one.median_signed_error)),
        ("rows", lambda one: f"{one.rows:,}"),
    )
    click.echo(f"limit: {percent(MOST_EXTENDED)}")
    for across in found.across:
        click.echo(f"\n{across.operator} on 10 × 8 H100, from rows of 1 × 8 and 10 × 1")
        print_table(
            across.sizes,
            ("message", lambda size: f"{size.message_bytes / 2**20:,.0f} MiB"),
            ("measured", lambda size: seconds(size.measured_us / 1e6)),
            ("predicted", lambda size: seconds(size.predicted_us / 1e6)),
            ("error", lambda size: signed_percent(size.error)),
            ("slower level alone", lambda size: signed_percent(size.slower_level_us / size.measured_us - 1)),
        )
        click.echo(f"median from 256 MiB: {percent(across.median_error)}, limit: {percent(MOST_ACROSS)}")


_MOST_POINTS = 160
_POINTS = f"rising numbers up to {_MOST_POINTS}, such as 5,20"


@click.command(short_help="Predict a device's operators from a few of its points and another device.")
@click.argument("donor", metavar="NAME|FILE")
@click.argument("database_path", metavar="DB", type=option.FILE)
@option.text(
    "--points",
    "Points per operator that correct the prior.",
    default="5,20",
    metavar="N[,N...]",
    callback=lambda context, parameter, value: option.whole_numbers(
        value, "--points", _MOST_POINTS, _POINTS, is_rising=True
    ),
)
@option.several("--without", "Leave this operator out; repeatable.", metavar="OPERATOR[:ROLE]")
@option.text("--draws", "Number of random draws of held-out rows.", type=click.IntRange(1, 100), default=5)
@option.json
def prior(donor: str, database_path: Path, **asked: Any) -> Shown:
    """Predict the operators of the device in DB from another device's bundle and a few points of DB.

    A fifth of the rows is held out. Points are chosen as by collect compute --prior, or at random. The baseline is a
    regressor trained on random points only, without the prior.

    \b
    kernelcast validate prior a100-sxm gh200.db --points 5,20
    kernelcast validate prior perlmutter.kcast vista.db --without flash_attention --without adam:first_stage
    """
    bundle = read_prior(donor)
    with Database.open(database_path, read_only=True) as database, progress("operators") as report:
        found = validate_prior(bundle, database, **asked, on_progress=report)
    return Shown(found.to_dict(), lambda: _show_prior(found))


def _show_prior(found: PriorValidation) -> None:
    print_table(
        [(one, one.to_dict()) for one in (found.uncorrected, *found.found)],
        ("points", lambda row: str(row[0].points)),
        ("way", lambda row: row[0].way if row[0].points else "prior alone"),
        ("median", lambda row: percent(row[1]["median_error"])),
        ("mean", lambda row: percent(row[1]["mean_error"])),
        ("median of roles", lambda row: percent(row[1]["median_role_error"])),
        ("mean of roles", lambda row: percent(row[1]["mean_role_error"])),
        ("in 90 %", lambda row: percent(row[1]["coverage"])),
        ("calls", lambda row: f"{row[0].minutes:.1f} min" if row[0].points else "-"),
    )
    count = len(found.uncorrected.operators)
    click.echo(
        f"{found.prior} → {found.target}, scaled by {found.scaled_by}: {count} operators and directions, "
        f"{len(found.uncorrected.of_roles)} with their roles, {found.draws} draws"
    )
    if found.left_out and not is_quiet():
        click.echo(f"left out: {', '.join(found.left_out)}")
