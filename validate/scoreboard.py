"""Figures of scored steps, source by source, from the plain values of `kernelcast validate steps --json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kernelcast.runtime.errors import DataError, UsageError, needs_extra, shown_path

Document = Mapping[str, Any]
_OF_STEP = ("label", "measured_s", "predicted_s", "is_steady", "published_error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measured step with its prediction; `error` is predicted / measured - 1."""

    label: str
    measured_s: float
    predicted_s: float
    interval_s: tuple[float, float]
    devices: int
    tokens: int
    layout: str
    hardware: str
    is_steady: bool
    published_error: float | None

    @classmethod
    def of(cls, step: Document, hardware: str) -> Self:
        split = [name for name in ("pp", "tp") if step[name] > 1]
        low_s, high_s = step["interval_s"]
        return cls(
            **{name: step[name] for name in _OF_STEP},
            interval_s=(low_s, high_s),
            devices=step["pp"] * step["tp"] * step["dp"],
            tokens=step["sequence_length"],
            layout=" × ".join(split) or "dp alone",
            hardware=hardware,
        )

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A site's steps, in the order of its file; `is_own` where they were added (`validate add`)."""

    site: str
    runs_file: str
    asked: str
    fabric: str
    is_own: bool
    points: tuple[Point, ...]


def sources_of(document: Document) -> tuple[Source, ...]:
    """The sources of `kernelcast.steps/1`, with the steps that were predicted."""
    return tuple(
        Source(
            **{name: one[name] for name in ("site", "runs_file", "asked", "fabric")},
            is_own=not one["is_shipped"],
            points=tuple(
                Point.of(step, one["asked"]) for step in one["steps"] if step["predicted_s"] is not None
            ),
        )
        for one in document["files"]
    )


# The palette of Okabe and Ito, which colour-blind readers can distinguish.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#8C6BB1")
_MARKERS = "os^vDPX"
_OWN = "#000000"
_LABELS = {
    "times": "measured step, s",
    "devices": "devices",
    "tokens": "tokens of a sequence",
    "layout": "layout",
    "hardware": "hardware",
}
COLUMNS = tuple(_LABELS)
_BAND: dict[str, Any] = {"color": "grey", "alpha": 0.15, "linewidth": 0, "zorder": 0}
"""Errors of 10 % and less."""
_LOGARITHMIC = ("devices", "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot: `column` "times" is predicted against measured, any other the errors by that field of a step."""

    title: str
    column: str
    sources: Sequence[Source]


def draw(path: Path, rows: Sequence[Sequence[Panel]], *, panel_width: float = 4.2) -> None:
    """Draw panels in rows; the file's name decides the format: .png, .svg, .pdf, else UsageError."""
    with needs_extra("a picture", "plot"):
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt
    # Dates and random names would change the file with every run.
    mpl.rcParams["svg.hashsalt"] = "kernelcast"
    columns = max(map(len, rows))
    figure, axes = plt.subplots(
        len(rows), columns, figsize=(panel_width * columns, 4.2 * len(rows) + 0.7), dpi=100, squeeze=False
    )
    errors = [
        100 * p.error for panels in rows for panel in panels for one in panel.sources for p in one.points
    ]
    edge = 0.06 * (max(errors) - min(errors) + 1)
    for places, panels in zip(axes, rows, strict=True):
        for place, panel in zip(places, panels, strict=True):
            _times(place, panel) if panel.column == "times" else _errors(place, panel)
            if panel.column != "times":
                place.set_ylim(min(errors) - edge, max(errors) + edge)
            place.set_title(panel.title, fontsize=10)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=min(len(labels), 6), fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.55 / (4.2 * len(rows) + 0.7), 1, 1))
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except ValueError as error:
        raise UsageError(f"{shown_path(path)}: {error}") from error
    except OSError as error:
        raise DataError(f"{shown_path(path)}: cannot be written ({error.strerror})") from error
    finally:
        plt.close(figure)


def _times(axes: Any, panel: Panel) -> None:
    every = [time_s for one in panel.sources for p in one.points for time_s in (p.measured_s, p.predicted_s)]
    ends = min(every) / 1.2, max(every) * 1.2
    axes.plot(ends, ends, color="grey", linewidth=0.8, zorder=1)
    axes.fill_between(ends, [0.9 * end for end in ends], [1.1 * end for end in ends], **_BAND)
    for source, style in _styles(panel.sources):
        measured = [one.measured_s for one in source.points]
        predicted = [one.predicted_s for one in source.points]
        beyond = [[one.predicted_s - one.interval_s[0] for one in source.points]]
        beyond.append([one.interval_s[1] - one.predicted_s for one in source.points])
        axes.errorbar(
            measured, predicted, yerr=beyond, fmt="none", ecolor=style["color"], alpha=0.35, linewidth=0.8
        )
        axes.plot(measured, predicted, label=source.site, **style)
    axes.set(
        xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel=_LABELS["times"], ylabel="predicted step, s"
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.set_aspect("equal")
    axes.grid(alpha=0.25)


def _errors(axes: Any, panel: Panel) -> None:
    names = list(dict.fromkeys(getattr(p, panel.column) for one in panel.sources for p in one.points))
    is_number = panel.column in _LOGARITHMIC
    count = len(panel.sources)
    for index, (source, style) in enumerate(_styles(panel.sources)):
        # Sources are drawn next to each other, not on each other.
        aside = (index - (count - 1) / 2) / max(count, 2)
        at = [
            getattr(one, panel.column) * 2 ** (0.5 * aside)
            if is_number
            else names.index(getattr(one, panel.column)) + 0.5 * aside
            for one in source.points
        ]
        axes.plot(at, [100 * one.error for one in source.points], label=source.site, **style)
    axes.axhline(0, color="grey", linewidth=0.8, zorder=1)
    axes.axhspan(-10, 10, **_BAND)
    if is_number:
        ticks = sorted(names)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [_short(one) for one in ticks], fontsize=8)
        axes.minorticks_off()
    else:
        axes.set_xticks(range(len(names)), names, rotation=25, ha="right", fontsize=8)
        axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set(xlabel=_LABELS[panel.column], ylabel="predicted / measured − 1, %")
    axes.grid(alpha=0.25)


def _styles(sources: Sequence[Source]) -> Any:
    """Sources with how they are marked; the reader's own site has black stars."""
    foreign = [one for one in sources if not one.is_own]
    for source in sources:
        if source.is_own:
            style = {"color": _OWN, "marker": "*", "markersize": 9, "zorder": 4}
        else:
            number = foreign.index(source)
            style = {
                "color": _COLOURS[number % len(_COLOURS)],
                "marker": _MARKERS[number % len(_MARKERS)],
                "markersize": 4.5,
                "zorder": 3,
            }
        yield source, {"linestyle": "", "alpha": 0.8, "markeredgewidth": 0, **style}


def _short(number: int) -> str:
    return f"{number // 1024}k" if number >= 1024 and number % 1024 == 0 else f"{number}"
