"""The report of a training: one HTML file with its tables and plots that loads nothing from elsewhere."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from kernelcast.runtime.bundle.manifest import UNKNOWN_MOMENT
from kernelcast.runtime.bundle.regressor_entry import LEVEL
from kernelcast.runtime.errors import DataError, system_errors
from kernelcast.runtime.operators import role_name
from kernelcast.runtime.output_file import write_pieces
from kernelcast.runtime.views.formatting import amount, counted, percent
from kernelcast.runtime.views.page import (
    Markup,
    bullets,
    details,
    document,
    element,
    facts,
    joined,
    rows_table,
    section,
    tile,
)
from kernelcast.train.report.figures import OperatorFigures, TrainingFigures, as_percent, table_rows

FILE_NAME = "index.html"
_OUTLIERS_SHOWN = 500

Progress = Callable[[int, int, str], None]


def check_directory(directory: Path) -> None:
    """Refuse a folder that a report cannot be made in or written to (DataError); it need not exist yet."""
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

    The same training gives the same bytes. Returns the page's path; DataError where it cannot be written.
    """
    content, path = page(figures, on_progress=on_progress), directory / FILE_NAME
    with system_errors(f"report {directory}", "cannot be made"):
        directory.mkdir(parents=True, exist_ok=True)
    write_pieces(path, [content])
    return path


def page(figures: TrainingFigures, *, on_progress: Progress = lambda done, total, what: None) -> str:
    """The whole page: means, table, left-out operators, notes, overview of errors, every operator."""
    # Only here: matplotlib takes long to import.
    from kernelcast.train.report.plots import overview

    operators = []
    for done, operator in enumerate(figures.operators, start=1):
        operators.append(_operator(operator))
        on_progress(done, len(figures.operators), operator.entry.operator)
    trained, title = figures.trained, f"Training of {figures.trained.path.name}"
    made_by = f"written by kernelcast {trained.manifest.kernelcast_version}"
    count = f"{counted(len(operators), 'regressor')}, one per operator and direction, {made_by}."
    header = element("header", element("h1", title), element("p", count, class_="soft"))
    main = element(
        "main",
        element("dl", *_tiles(figures), class_="tiles"),
        facts(_facts(figures)),
        section("Operators", _table(figures)),
        *([section("Left out", bullets(*map(str, trained.skipped)))] if trained.skipped else []),
        *([section("Notes", bullets(*map(str, trained.notes)))] if trained.notes else []),
        section("Errors at a glance", overview(figures)),
        section("How to read this", _reading()),
        section("Operator by operator", *operators),
    )
    return document(title, header, main, sorts=True)


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


def _table(found: TrainingFigures) -> Markup:
    linked = [
        row | {"operator": element("a", row["operator"], href=f"#{operator.anchor}")}
        for row, (operator, _) in zip(table_rows(found), found.by_role, strict=True)
    ]
    caption = "Errors on held-out rows, from nested cross-validation. A heading sorts."
    return rows_table(linked, caption=caption, class_="sortable notes")


def _reading() -> Markup:
    level = percent(LEVEL, digits=0)
    terms = {
        "Error": "mean of |predicted − measured| / measured over all rows. We use nested cross-validation: the "
        "regressor that predicts a row was chosen and fitted without it.",
        "Reference": "the published error of the method's authors.",
        "Coverage": f"the share of held-out rows within their {level} interval, whose width comes from other rows. "
        "The shaded band in the plots is that interval.",
        "Extrapolated": "the error on workloads larger than any that was fitted, one feature at a time.",
        "Range": "smallest and largest value of every feature. A prediction outside carries a warning. The plots of "
        "sampled workloads show it dashed; a larger point stands for more workloads.",
    }
    return bullets(*(joined((element("b", name), f": {text}")) for name, text in terms.items()))


def _operator(operator: OperatorFigures) -> Markup:
    from kernelcast.train.report.plots import regressor_plots

    parts: list[Markup] = []
    if plots := list(regressor_plots(operator)):
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
        f"{entry.rows:,} rows: {operator.ranges}.{taken}"
    )


def _layouts(operator: OperatorFigures) -> Markup:
    table = [
        {
            "role": role_name(operator.entry.operator, layout.role),
            "nodes × devices per node": f"{layout.nodes} × {layout.gpus_per_node}",
            "rows": layout.rows,
            "error_percent": as_percent(layout.error),
            "median_error_percent": as_percent(layout.median_error),
            "reference_percent": as_percent(layout.reference_error),
        }
        for layout in operator.layouts
    ]
    return rows_table(table, caption=f"Errors of {operator.name} by layout")


def _outliers(operator: OperatorFigures) -> Markup:
    count = len(operator.outliers)
    shown = f", the {_OUTLIERS_SHOWN} furthest off" if count > _OUTLIERS_SHOWN else ""
    table = [
        {
            **dict(zip(operator.entry.features, outlier.vector, strict=True)),
            "measured_time_s": outlier.time_us * 1e-6,
            "predicted, held out_time_s": outlier.held_out_us * 1e-6,
            "off by_ratio": max(outlier.time_us / outlier.held_out_us, outlier.held_out_us / outlier.time_us),
        }
        for outlier in operator.outliers[:_OUTLIERS_SHOWN]
    ]
    summary = f"{counted(count, 'outlier')}, which the regressor does not follow{shown}"
    return details(summary, rows_table(table, caption=f"Outliers of {operator.name}"))
