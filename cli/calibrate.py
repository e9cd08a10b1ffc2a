"""`kernelcast calibrate`: a bundle corrected by a few measured steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kernelcast.cli import option
from kernelcast.cli.fields import check_one
from kernelcast.cli.tables import table_of
from kernelcast.cli.terminal import Shown, is_quiet, note, say
from kernelcast.runtime.answers.asking import Question
from kernelcast.runtime.answers.warnings import AnswerWarning, Cause
from kernelcast.runtime.bundle.calibration import CLASSES, Calibration
from kernelcast.runtime.bundle.file import Bundle, read_bundle
from kernelcast.runtime.errors import DataError, error_context, needs_extra, one_line
from kernelcast.runtime.estimate.doubts import grouped
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.request.fields import TimelineKind
from kernelcast.runtime.views.formatting import seconds
from kernelcast.validate.calibration import PredictedStep, left_out_errors, predicted_steps, write_calibrated
from kernelcast.validate.calibration import calibrate as fit_calibration
from kernelcast.validate.calibration_steps import distinctly_labelled
from kernelcast.validate.comparison import mean_absolute
from kernelcast.validate.runs import MeasuredRun, RunsFile

FORMAT = "kernelcast.calibration/1"


@click.command("calibrate")
@option.bundle_path
@option.file("--runs", "runs_path", "File of measured steps (TOML, docs/validation.md).")
@option.file(
    "--db", "database_path", "Database with measured steps (of validate run or demo) instead of a file."
)
@option.file("--output", "-o", "Write the corrected bundle.  [default: only report]")
@option.choice(
    ["simulate", "closed-form"],
    "--timeline",
    "Timeline whose predictions are corrected.",
    default="simulate",
)
@option.text(
    "--parameters",
    "Number of factors, from 1 (one for all operators) to 4 (one per class).  "
    "[default: one for every two configurations]",
    type=click.IntRange(1, len(CLASSES)),
)
@option.flag("--force", "Write the bundle even if cross-validation shows no improvement.")
@option.json
def calibrate(
    *,
    bundle_path: Path,
    runs_path: Path | None,
    database_path: Path | None,
    output: Path | None,
    timeline: TimelineKind,
    parameters: int | None,
    force: bool,
) -> Shown:
    """Correct a bundle by measured steps: one factor per class of operators, shrunk towards 1.

    Prints each step's error before correction, cross-validated (with a correction fitted to the other configurations)
    and after. A correction that does not reduce the cross-validated error is written only with --force; without it, the
    exit status is 1.

    \b
    kernelcast calibrate --bundle here.kcast --runs site.toml -o calibrated.kcast
    """
    check_one("--runs", runs_path, "--db", database_path)
    bundle = read_bundle(bundle_path)
    runs, source = _source(runs_path, database_path, bundle)
    with error_context(
        one_line(f"database {database_path}" if runs_path is None else f"runs file {runs_path}")
    ):
        steps = predicted_steps(bundle, runs, timeline)
    found = fit_calibration(steps, **source, parameters=parameters)
    others = {count: mean_absolute(left_out_errors(steps, count)) for count in range(1, len(CLASSES) + 1)}
    write = output is not None and (force or found.helps is not False)
    digest = write_calibrated(output, bundle, found) if write and output is not None else None
    refused = DataError(
        f"{one_line(str(output))}: not written: the correction does not reduce the cross-validated error "
        f"({found.mean_error_left_out or 0:.1%}, without it {found.mean_error_before:.1%}); --force writes it"
    )
    written = output if write else None
    return Shown(
        _document(bundle, steps, found, others, written, digest),
        lambda: say(_render(bundle, steps, found, others)),
        error=None if write or output is None else refused,
        written=written,
    )


def _source(
    runs_path: Path | None, database_path: Path | None, bundle: Bundle
) -> tuple[tuple[MeasuredRun, ...], dict[str, Any]]:
    """The measured steps, and their description for the manifest."""
    if runs_path is not None:
        read = RunsFile.read(runs_path)
        return distinctly_labelled(read.runs, bundle.manifest), {
            "source": read.site,
            "source_digest": read.digest,
        }
    assert database_path is not None
    with needs_extra("--db", "store"):
        from kernelcast.validate.calibration_steps import stored_runs
    stored = stored_runs(database_path, bundle.manifest)
    if stored.left_out:
        note(f"note: steps of {one_line(str(database_path))} left out: {stored.left_out}", err=True)
    return stored.runs, {
        "source": one_line(database_path.name),
        "source_digest": stored.digest,
        "measured_at": stored.measured_at,
    }


def _document(
    bundle: Bundle,
    predicted: Sequence[PredictedStep],
    found: Calibration,
    others: dict[int, float | None],
    output: Path | None,
    digest: str | None,
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "bundle": str(bundle.path),
        "bundle_digest": bundle.digest,
        "helps": found.helps,
        "mean_abs_error": values_of(found, before="mean_error_before", left_out="mean_error_left_out")
        | {"after": mean_absolute([run.error_after for run in found.runs])},
        "left_out_by_parameters": {str(count): error for count, error in others.items()},
        "classes": [
            {"class": one.value, "factor": factor, "interval": list(found.intervals[one])}
            for one, factor in found.factors.items()
        ],
        "runs": [
            {"label": step.run.label, "warnings": [str(warning) for warning in step.estimate.warnings]}
            for step in predicted
        ],
        "calibration": found.to_dict(),
        "written": None if output is None else str(output),
        "written_digest": digest,
    }


def _render(
    bundle: Bundle, predicted: Sequence[PredictedStep], found: Calibration, others: dict[int, float | None]
) -> str:
    count = len(found.runs)
    intervals = found.intervals
    steps = table_of(
        found.runs,
        ("step", lambda run: one_line(run.label)),
        ("measured", lambda run: seconds(run.measured_s)),
        ("predicted", lambda run: seconds(run.measured_s * (1 + run.error_before))),
        ("error", lambda run: f"{run.error_before:+.2%}"),
        ("cross-validated", lambda run: "-" if run.error_left_out is None else f"{run.error_left_out:+.2%}"),
        ("after", lambda run: f"{run.error_after:+.2%}"),
        indent="  ",
    )
    factors = table_of(
        found.factors.items(),
        ("class", lambda item: item[0].value),
        ("factor", lambda item: f"{item[1]:.4f}"),
        ("90 % interval", lambda item: " to ".join(f"{end:.4f}" for end in intervals[item[0]])),
        indent="  ",
    )
    left_out = found.mean_error_left_out
    after = mean_absolute([run.error_after for run in found.runs])
    means = {"before": found.mean_error_before, "cross-validated": left_out, "after": after}
    listed = ", ".join(f"{error:.2%} {name}" for name, error in means.items() if error is not None)
    mean = f"mean of absolute errors: {listed}"
    if is_quiet():
        return f"{mean}\n{_verdict(found)}"
    sections = [
        f"{one_line(str(bundle.path))}, timeline {found.timeline}, "
        f"{count} measured step{'' if count == 1 else 's'} of {found.source}",
        "\n".join((steps, *_notes(predicted))),
        mean,
        factors,
        f"parameters {found.parameters}; residual {found.residual:.1%} of a step",
    ]
    if left_out is not None:
        listed = ", ".join(f"{count}: {error:.2%}" for count, error in others.items() if error is not None)
        sections.append(f"cross-validated, by number of parameters: {listed}")
    return "\n\n".join([*sections, _verdict(found)])


def _notes(predicted: Sequence[PredictedStep]) -> list[str]:
    """What makes predictions doubtful, by cause; names the steps unless all are affected."""
    concerned: dict[AnswerWarning, set[Question]] = {}
    times_s: dict[Question, float] = {}
    labels: dict[Cause, list[str]] = {}
    for step in predicted:
        for warning, questions in step.estimate.concerned.items():
            concerned.setdefault(warning, set()).update(questions)
        for question, time_s in step.estimate.times_s.items():
            times_s[question] = times_s.get(question, 0.0) + time_s
        for doubt in step.estimate.doubts:
            labels.setdefault(doubt.cause, []).append(one_line(step.run.label))
    notes = []
    for doubt in grouped(concerned, times_s):
        own = labels[doubt.cause]
        which = own[0] if len(own) == 1 else f"{len(own)} of {len(predicted)} steps"
        if doubt.has_influence:
            notes.append(f"  note: {'' if len(own) == len(predicted) else f'{which}: '}{doubt.line}")
    return notes


def _verdict(found: Calibration) -> str:
    if found.helps is None:
        one = "With one step" if len(found.runs) == 1 else "With steps of one configuration"
        return f"{one} cross-validation is not possible: whether the correction helps with other steps is not known."
    if found.helps:
        return "The correction helps: it reduces the error of steps that it was not fitted to."
    return (
        "The correction does NOT help: it does not reduce the error of steps that it was not fitted to. "
        "Use the bundle as it is, or measure more steps."
    )
