"""`kernelcast validate published`."""

from pathlib import Path
from typing import Any

import click

from kernelcast.cli.options import FILE, PATH, Shown, json_option
from kernelcast.cli.progress import progress
from kernelcast.cli.tables import print_table, signed_percent, text_table
from kernelcast.cli.terminal import is_quiet, say
from kernelcast.cli.train import jobs_option, seed_option, show_doubts
from kernelcast.runtime.bundle.file import read_bundle
from kernelcast.runtime.estimate.doubts import warning_lines
from kernelcast.runtime.views.formatting import percent, seconds
from kernelcast.validate.comparison import ComparedRun
from kernelcast.validate.published import Published, published_runs, validate_published


@click.command(short_help="Predict steps published by the method's authors, from their operator data.")
@click.argument("directory", metavar="DIR", type=PATH)
@click.option(
    "--runs",
    "runs_name",
    metavar="FILE",
    default="",
    help="Measured steps (TOML), or a site whose steps ship.  [default: the name of DIR]",
)
@click.option("--db", "database_path", metavar="FILE", type=FILE, help="Database for the imported rows.")
@click.option("-o", "--output", type=FILE, help="Bundle to write.")
@click.option(
    "--from",
    "earlier_path",
    metavar="OLD",
    type=FILE,
    help="Reuse regressors of an earlier bundle whose rows and settings are unchanged.",
)
@click.option("--dtype", default="", metavar="NAME", help="Dtype to use, if DIR holds several.")
@seed_option
@jobs_option
@json_option
def published(directory: Path, runs_name: str, earlier_path: Path | None, **asked: Any) -> Shown:
    """Predict published training steps from operators measured at the same site.

    DIR is a site's folder of the data of the method's authors. The data is imported, regressors are trained on it
    (minutes), and every step is predicted by the paper's closed form and by simulation, without calibration.

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
    return Shown(found.to_dict(), lambda: _show(found))


def _show(found: Published) -> None:
    for run in () if is_quiet() else found.runs:
        _show_components(run)
    say(f"\n{found.file.site}: {found.file.hardware}")
    rows = [
        (
            run.run.label,
            seconds(run.run.measured_s),
            seconds(run.closed_form.step_time_s),
            signed_percent(run.error, 2),
            _interval(run),
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


def _interval(run: ComparedRun) -> str:
    interval_s = run.closed_form.interval_s
    return "-" if interval_s is None else " to ".join(map(seconds, interval_s))
