"""The report of a training: one HTML file with its tables and plots that loads nothing from elsewhere."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from kernelcast.runtime.bundle.interval import LEVEL
from kernelcast.runtime.bundle.manifest import UNKNOWN_MOMENT
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import role_name
from kernelcast.runtime.output_file import write_pieces
from kernelcast.runtime.views.formatting import amount, counted, percent, value_range
from kernelcast.runtime.views.page import (
    SORT,
    Markup,
    bullets,
    details,
    document,
    element,
    facts,
    joined,
    picture,
    region,
    section,
    table,
    tile,
)
from kernelcast.train.intervals import log_half_widths
from kernelcast.train.report.figures import OperatorFigures, TrainingFigures
from kernelcast.train.report.plots import (
    HEIGHT,
    OVERVIEW_WIDTH,
    WIDTH,
    agreement_plot,
    coverage_plot,
    errors_plot,
    overview_plot,
)
from kernelcast.train.report.points import Points
from kernelcast.train.report.table import columns, rows

FILE_NAME = "index.html"
_OUTLIERS_SHOWN = 500

Progress = Callable[[int, int, str], None]


def check_directory(directory: Path) -> None:
    """Refuse a folder that a report cannot be written into; it need not exist yet.

    Raises:
        DataError: it is a file, or cannot be made or written.
    """
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise DataError(f"report {directory}: cannot be written ({existing} is not a folder)")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise DataError(f"report {directory}: cannot be written (no permission to write in {existing})")


def write_report(
    figures: TrainingFigures, directory: Path, *, on_progress: Progress = lambda done, total, what: None
) -> Path:
    """Write the page into `directory`, which is made; an existing page is replaced as a whole.

    The same training gives the same bytes. Returns the page's path.

    Raises:
        DataError: the folder or the file cannot be written.
    """
    content, path = page(figures, on_progress=on_progress), directory / FILE_NAME
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"report {directory}: cannot be made ({error.strerror or error})") from error
    write_pieces(path, [content])
    return path


def page(figures: TrainingFigures, *, on_progress: Progress = lambda done, total, what: None) -> str:
    """The whole page: means, table, what was left out, notes, errors at a glance, every operator."""
    operators = []
    for done, operator in enumerate(figures.operators, start=1):
        operators.append(_operator(operator))
        on_progress(done, len(figures.operators), operator.entry.operator)
    trained, title = figures.trained, f"Training of {figures.trained.path.name}"
    made_by = f"written by kernelcast {trained.manifest.kernelcast_version}"
    count = f"{counted(len(operators), 'regressor')}, one per operator and direction, {made_by}."
    header = element("header", element("h1", title), element("p", count, class_="soft"))
    left_out = [f"{s.operator} ({s.direction}): {s.reason}" for s in trained.skipped]
    notes = [f"{n.operator} ({n.direction}): {n.text}" for n in figures.notes]
    main = element(
        "main",
        element("dl", *_tiles(figures), class_="tiles"),
        facts(_facts(figures)),
        section("Operators", _table(figures)),
        *([section("Left out", bullets(*left_out))] if left_out else []),
        *([section("Notes", bullets(*notes))] if notes else []),
        section("Errors at a glance", _overview(figures)),
        section("How to read this", _reading()),
        section("Operator by operator", *operators),
    )
    return document(title, header, main, script=SORT)


def _tiles(figures: TrainingFigures) -> Iterator[Markup]:
    for name, value in (
        ("mean error, operators", figures.mean_validation_error),
        ("reference for the same", figures.mean_reference_error),
        ("mean error, collectives", figures.mean_collective_error),
        ("held-out rows within their interval", figures.mean_coverage),
        ("mean error extrapolated", figures.mean_extrapolation_error),
    ):
        if value is not None:
            yield tile(name, percent(value))
    yield tile("rows", f"{figures.rows:,}")
    yield tile("models", amount(figures.size_bytes, "B"))


def _facts(figures: TrainingFigures) -> dict[str, str]:
    manifest = figures.trained.manifest
    found = {
        "hardware": "; ".join(f.description for f in manifest.compute),
        "fabric": "; ".join(f.description for f in manifest.fabric),
        "software": "; ".join(f.description for f in manifest.software),
        "times": f"{manifest.statistic.replace('_', ' ')}, {manifest.dtype}",
        "newest measurement": "not known" if manifest.created_at == UNKNOWN_MOMENT else manifest.created_at,
        "seed": str(manifest.seed),
        "dataset": manifest.dataset_digest,
        "bundle": figures.trained.digest,
    }
    return {name: text for name, text in found.items() if text}


def _table(figures: TrainingFigures) -> Markup:
    found = columns(figures)
    shown = [
        [element("data", cell.text, value=str(cell.value)) for cell in cells]
        for cells in zip(*(column.cells for column in found), strict=True)
    ]
    for row, (operator, _) in zip(shown, rows(figures), strict=True):
        row[0] = element("a", row[0], href=f"#{operator.anchor}")
    return table(
        [column.heading for column in found],
        shown,
        caption="Errors on held-out rows, from nested cross-validation. A heading sorts.",
        text_columns=[index for index, column in enumerate(found) if not column.is_number],
        class_="sortable notes",
    )


def _overview(figures: TrainingFigures) -> Markup:
    ordered = sorted(rows(figures), key=lambda row: row[1].error)
    names = [f"{role.name}, {operator.entry.direction_text}" for operator, role in ordered]
    errors = [(role.error, role.reference_error) for _, role in ordered]
    drawn, height = overview_plot(names, errors)
    best, worst = (f"{names[at]} with {percent(errors[at][0])}" for at in (0, -1))
    compared = any(reference is not None for _, reference in errors)
    svg = picture(
        "overview",
        "Errors of all regressors",
        f"Error of each regressor in each of its {len(ordered)} roles, from {best} to {worst}.",
        *drawn,
        width=OVERVIEW_WIDTH,
        height=height,
    )
    caption = (
        f"Mean error on held-out rows{' (filled) and that of the reference (hollow)' if compared else ''}."
    )
    return element(
        "figure", region("Errors of all regressors", svg), element("figcaption", caption), class_="overview"
    )


def _reading() -> Markup:
    level = percent(LEVEL, digits=0)
    terms = {
        "Error": "mean of |predicted − measured| / measured over all rows. Every row is predicted by a regressor that "
        "was chosen and fitted without it.",
        "Reference": "the error that others published of their regressors.",
        "Coverage": f"the share of held-out rows within their {level} interval, whose width comes from other rows. "
        "The shaded band in the plots is that interval.",
        "Extrapolated": "the error on workloads larger than any that was fitted, one feature at a time.",
        "Range": "smallest and largest value of every feature. A prediction outside carries a warning. In the plots of "
        "what was sampled it is dashed, and a larger point stands for more workloads at that place.",
    }
    return bullets(*(joined((element("b", name), f": {text}")) for name, text in terms.items()))


def _operator(operator: OperatorFigures) -> Markup:
    parts: list[Markup] = []
    if plots := list(_plots(operator)):
        parts.append(element("div", *plots, class_="plots"))
    if operator.layouts:
        parts.append(_layouts(operator))
    if operator.outliers:
        parts.append(_outliers(operator))
    return element(
        "section",
        element("h3", operator.name, id=operator.anchor),
        element("p", _summary(operator), class_="soft"),
        *parts,
        class_="operator",
    )


def _summary(operator: OperatorFigures) -> str:
    entry = operator.entry
    settings = ", ".join(
        name if value is True else f"{name} {value}"
        for name, value in entry.hyperparameters.items()
        if value is not False
    )
    taken = "" if operator.selected else " Taken over from an earlier bundle: its rows have not changed."
    return (
        f"{operator.title[:1].upper()}{operator.title[1:]}. {entry.algorithm} on {entry.form} ({settings}). "
        f"{entry.rows:,} rows: {_ranges(operator)}.{taken}"
    )


def _ranges(operator: OperatorFigures) -> str:
    entry = operator.entry
    pairs = zip(entry.features, entry.training_range, strict=True)
    return ", ".join(f"{feature} {value_range(low, high)}" for feature, (low, high) in pairs)


def _plots(operator: OperatorFigures) -> Iterator[Markup]:
    if operator.selected is None:
        return
    entry, rows = operator.entry, operator.selected.table
    widths = log_half_widths(entry.interval, rows.workloads)
    points = Points.of(rows, operator.selected.held_out_us, widths, entry.dtype)
    if not len(points):
        return
    reach = np.unique(np.expm1(points.half_widths)).tolist()
    band = " to ".join(dict.fromkeys(percent(end) for end in (reach[0], reach[-1])))
    level, lost = percent(LEVEL, digits=0), len(rows) - len(points)
    missing = f" {lost} rows whose prediction is not a number are not shown." if lost else ""
    unit = "floating-point operations" if points.size_unit == "FLOP" else "bytes moved"
    sizes, times_s = (
        f"{amount(values.min(), name)} to {amount(values.max(), name)}"
        for values, name in ((points.sizes, points.size_unit), (points.times_us * 1e-6, "s"))
    )
    worst = percent(float(np.abs(points.held_out_us / points.times_us - 1).max()))
    for name, drawn, title, description, caption in (
        (
            "agreement",
            agreement_plot(points),
            "predicted over measured time",
            f"{len(points):,} held-out rows, {times_s}; the points lie along the diagonal with a mean error of "
            f"{percent(entry.validation_error)}.",
            f"Predicted against measured, with the {level} band.{missing}",
        ),
        (
            "errors",
            errors_plot(points),
            f"error of the held-out prediction over {unit}",
            f"{sizes}; the largest error is {worst}, the {level} band reaches {band} either way.",
            f"Error over size; the {level} band reaches {band} either way.",
        ),
        (
            "coverage",
            coverage_plot(points),
            "what was sampled",
            f"The {len(rows):,} sampled workloads, {_ranges(operator)}.",
            "What was sampled; the training range is dashed.",
        ),
    ):
        label = f"{operator.anchor}-{name}"
        svg = picture(label, f"{operator.name}: {title}", description, *drawn, width=WIDTH, height=HEIGHT)
        yield element("figure", svg, element("figcaption", caption))


def _layouts(operator: OperatorFigures) -> Markup:
    rows = [
        (
            role_name(operator.entry.operator, layout.role),
            f"{layout.nodes} × {layout.gpus_per_node}",
            f"{layout.rows:,}",
            percent(layout.error),
            percent(layout.median_error),
            percent(layout.reference_error),
        )
        for layout in operator.layouts
    ]
    headers = ("role", "nodes × devices per node", "rows", "error", "median error", "reference")
    return table(headers, rows, caption=f"Errors of {operator.name} by layout")


def _outliers(operator: OperatorFigures) -> Markup:
    count = len(operator.outliers)
    shown = f", the {_OUTLIERS_SHOWN} furthest off" if count > _OUTLIERS_SHOWN else ""
    rows = [
        (
            *(f"{value:,}" for value in outlier.vector),
            amount(outlier.time_us * 1e-6, "s"),
            amount(outlier.held_out_us * 1e-6, "s"),
            f"{max(outlier.time_us / outlier.held_out_us, outlier.held_out_us / outlier.time_us):.1f} ×",
        )
        for outlier in operator.outliers[:_OUTLIERS_SHOWN]
    ]
    headers = (*operator.entry.features, "measured", "predicted, held out", "off by")
    summary = f"{counted(count, 'outlier')}, which the regressor does not follow{shown}"
    return details(summary, table(headers, rows, caption=f"Outliers of {operator.name}", text_columns=()))
