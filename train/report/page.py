"""The report of a training: one HTML file with its tables and plots, nothing outside it (extra `report`)."""

import base64
import hashlib
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kernelcast.runtime.bundle.interval import LEVEL
from kernelcast.runtime.bundle.manifest import UNKNOWN_MOMENT
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import OPERATORS
from kernelcast.train.intervals import log_half_widths
from kernelcast.train.report.canvas import Size
from kernelcast.train.report.figures import OperatorFigures, TrainingFigures
from kernelcast.train.report.plots import INCHES, agreement_svg, coverage_svg, errors_svg, overview_svg
from kernelcast.train.report.points import Points
from kernelcast.train.report.table import columns
from kernelcast.train.report.words import amount_text, percent_text, ranges_text, time_text

FILE_NAME = "index.html"
_HERE = Path(__file__).resolve().parent
_OUTLIERS_SHOWN = 500
_PIXELS_PER_INCH = 96
_PLAIN_IN_DATA = " :/?=&;,+()'-_.!*@$~"

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One picture of the page: the SVG as a data URI, what it shows in words, its size in CSS pixels."""

    source: str
    alt: str
    caption: str
    width: int
    height: int


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
    """Write the page into `directory`, which is made; a page that is there is replaced, all at once.

    The same training gives the same bytes. Answers the page's path.

    Raises:
        DataError: the folder or the file cannot be written.
    """
    content = page(figures, on_progress=on_progress).encode()
    path = directory / FILE_NAME
    partial = directory / f".{FILE_NAME}.{secrets.token_hex(4)}.partial"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_bytes(content)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"report {path}: cannot be written ({error.strerror or error})") from error
    return path


def page(figures: TrainingFigures, *, on_progress: Progress = lambda done, total, what: None) -> str:
    """The whole page."""
    manifest, table, operators = figures.trained.manifest, columns(figures), []
    for done, operator in enumerate(figures.operators, start=1):
        operators.append(_section(operator))
        on_progress(done, len(figures.operators), operator.entry.operator)
    script = (_HERE / "sort.js").read_text(encoding="utf-8")
    content: str = _template("page.html").render(
        title=figures.trained.path.name,
        manifest=manifest,
        tiles=_tiles(figures),
        facts=_facts(figures),
        columns=table,
        rows=list(zip(*(column.cells for column in table), strict=True)),
        operators=operators,
        skipped=figures.trained.skipped,
        notes=figures.notes,
        overview=_overview(figures),
        level=percent_text(LEVEL, digits=0),
        script=Markup(script),  # ours, from the file beside this one
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return content


@cache
def _environment() -> Environment:
    return Environment(loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined)


def _template(name: str) -> Any:
    return _environment().get_template(name)


def _tiles(figures: TrainingFigures) -> list[tuple[str, str]]:
    measured = [
        ("mean error, operators", figures.mean_validation_error),
        ("reference for the same", figures.mean_reference_error),
        ("mean error, collectives", figures.mean_collective_error),
        ("held-out rows within their interval", figures.mean_coverage),
        ("mean error extrapolated", figures.mean_extrapolation_error),
    ]
    return [
        *((name, percent_text(value)) for name, value in measured if value is not None),
        ("rows", f"{figures.rows:,}"),
        ("models", amount_text(figures.size_bytes, "B")),
    ]


def _facts(figures: TrainingFigures) -> list[tuple[str, str]]:
    manifest = figures.trained.manifest
    listed = [
        ("hardware", [f.description for f in manifest.compute]),
        ("fabric", [f.description for f in manifest.fabric]),
        ("software", [f.description for f in manifest.software]),
    ]
    return [
        *((name, "; ".join(descriptions)) for name, descriptions in listed if descriptions),
        ("times", f"{manifest.statistic.replace('_', ' ')}, {manifest.dtype}"),
        ("newest measurement", "not known" if manifest.created_at == UNKNOWN_MOMENT else manifest.created_at),
        ("seed", str(manifest.seed)),
        ("dataset", manifest.dataset_digest),
        ("bundle", figures.trained.digest),
    ]


def _section(operator: OperatorFigures) -> Mapping[str, Any]:
    entry = operator.entry
    return {
        "operator": entry.operator,
        "direction": entry.direction_text,
        "anchor": entry.file.removeprefix("models/").removesuffix(".onnx"),
        "title": f"{OPERATORS[entry.operator].title[:1].upper()}{OPERATORS[entry.operator].title[1:]}",
        "summary": _summary(operator),
        "plots": _plots(operator),
        "features": entry.features,
        "layouts": [
            (
                f"{layout.nodes} × {layout.gpus_per_node}",
                f"{layout.rows:,}",
                percent_text(layout.error),
                percent_text(layout.median_error),
                percent_text(layout.reference_error),
            )
            for layout in operator.layouts
        ],
        "outliers": _outliers(operator),
        "outlier_summary": _outlier_summary(operator),
    }


def _summary(operator: OperatorFigures) -> str:
    entry = operator.entry
    settings = ", ".join(
        name if value is True else f"{name} {value}"
        for name, value in entry.hyperparameters.items()
        if value is not False
    )
    ranges = ", ".join(
        f"{feature} {ranges_text([ends])}"
        for feature, ends in zip(entry.features, entry.training_range, strict=True)
    )
    taken = "" if operator.selected else " Taken over from an earlier bundle: its rows have not changed."
    pooled = f" Fitted together with {', '.join(operator.relatives)}." if operator.relatives else ""
    return f"{entry.algorithm} on {entry.form} ({settings}). {entry.rows:,} rows: {ranges}.{pooled}{taken}"


def _plots(operator: OperatorFigures) -> list[Plot]:
    if operator.selected is None:
        return []
    entry, table = operator.entry, operator.selected.table
    widths = log_half_widths(entry.interval, table.workloads)
    points = Points.of(table, operator.selected.held_out_us, widths, entry.dtype)
    if not len(points):
        return []
    name = f"{entry.operator}, {entry.direction_text}"
    times = f"{time_text(points.times_us.min())} to {time_text(points.times_us.max())}"
    widest = np.unique(np.expm1(points.half_widths))
    band = " to ".join(percent_text(float(width)) for width in dict.fromkeys((widest[0], widest[-1])))
    error, level = percent_text(entry.validation_error), percent_text(LEVEL, digits=0)
    lost = len(table) - len(points)
    missing = f" {lost} rows whose prediction is no number are not shown." if lost else ""
    unit = "floating-point operations" if points.size_unit == "FLOP" else "bytes moved"
    sizes = " to ".join(
        amount_text(float(end), points.size_unit) for end in (points.sizes.min(), points.sizes.max())
    )
    worst = percent_text(float(np.abs(points.held_out_us / points.times_us - 1).max()))
    ranges = ", ".join(
        f"{feature} {ranges_text([ends])}"
        for feature, ends in zip(entry.features, entry.training_range, strict=True)
    )
    return [
        _plot(
            agreement_svg(points),
            alt=f"{name}: predicted over measured time of {len(points):,} held-out rows, {times}; "
            f"the points lie along the diagonal with a mean error of {error}.",
            caption=f"Predicted against measured, with the {level} band.{missing}",
        ),
        _plot(
            errors_svg(points),
            alt=f"{name}: error of the held-out prediction over {unit}, {sizes}; the largest is {worst}, "
            f"the {level} band reaches {band} either way.",
            caption=f"Error over size; the {level} band reaches {band} either way.",
        ),
        _plot(
            coverage_svg(points),
            alt=f"{name}: the {len(table):,} sampled workloads, {ranges}.",
            caption="What was sampled; the training range is dashed.",
        ),
    ]


def _overview(figures: TrainingFigures) -> Plot:
    ordered = sorted(figures.operators, key=lambda o: o.entry.validation_error)
    errors = [(o.entry.validation_error, o.reference_error) for o in ordered]
    names = [f"{o.entry.operator}, {o.entry.direction_text}" for o in ordered]
    svg, inches = overview_svg(names, errors)
    best, worst = (f"{names[place]} with {percent_text(errors[place][0])}" for place in (0, -1))
    compared = any(reference is not None for _, reference in errors)
    return _plot(
        svg,
        alt=f"Error of each of {len(names)} regressors, from {best} to {worst}.",
        caption="Mean error on held-out rows"
        + (" (filled) and that of the reference (hollow)." if compared else "."),
        inches=inches,
    )


def _plot(svg: str, *, alt: str, caption: str, inches: Size = INCHES) -> Plot:
    return Plot(
        # Not in base64, which the pictures inside are already.
        source="data:image/svg+xml," + quote(svg, safe=_PLAIN_IN_DATA),
        alt=alt,
        caption=caption,
        width=round(inches[0] * _PIXELS_PER_INCH),
        height=round(inches[1] * _PIXELS_PER_INCH),
    )


def _outliers(operator: OperatorFigures) -> list[Sequence[str]]:
    return [
        (
            *(f"{value:,}" for value in outlier.vector),
            time_text(outlier.time_us),
            time_text(outlier.held_out_us),
            f"{max(outlier.time_us / outlier.held_out_us, outlier.held_out_us / outlier.time_us):.1f} ×",
        )
        for outlier in operator.outliers[:_OUTLIERS_SHOWN]
    ]


def _outlier_summary(operator: OperatorFigures) -> str:
    count = len(operator.outliers)
    shown = f", the {_OUTLIERS_SHOWN} furthest off" if count > _OUTLIERS_SHOWN else ""
    return f"{count:,} {'outlier' if count == 1 else 'outliers'}, which the regressor does not follow{shown}"
