"""Pictures of errors against the number of measurements: panels of curves on logarithmic axes."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_TICKS = (2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500)
_FINE_TICKS = (2, 2.5, 3, 3.5, 4, 5, 5.5, 6, 6.5, 7, 8, 10, 12, 15, 20)


class Curve(NamedTuple):
    """One curve; errors are fractions."""

    label: str
    colour: str
    marker: str
    counts: Sequence[int]
    errors: Sequence[float]


class Panel(NamedTuple):
    """Curves, the numbers to mark on their axis, and an error to compare with, with a label of its own."""

    title: str
    curves: Sequence[Curve]
    marked: Sequence[int]
    reference: float
    reference_label: str = ""


def draw(
    path: Path, rows: Sequence[Sequence[Panel]], *, size: tuple[float, float], axis: str, errors: str
) -> None:
    """Draw panels in rows with a common legend; `axis` and `errors` are the labels of the axes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, places = plt.subplots(
        len(rows), len(rows[0]), figsize=size, constrained_layout=True, squeeze=False
    )
    for place, panel in zip(places.flat, [one for row in rows for one in row], strict=True):
        for one in panel.curves:
            percents = [100 * error for error in one.errors]
            place.plot(one.counts, percents, marker=one.marker, color=one.colour, label=one.label, ms=4)
        reference = 100 * panel.reference
        place.axhline(reference, color="#888888", lw=0.8, ls=":")
        place.text(panel.marked[-1], 1.04 * reference, panel.reference_label, ha="right", fontsize=8)
        place.set(xscale="log", yscale="log")
        place.set_xticks(panel.marked, [str(count) for count in panel.marked])
        low, high = place.get_ylim()
        ticks = [one for one in (_TICKS if high > 4 * low else _FINE_TICKS) if low <= one <= high]
        place.set_yticks(ticks, [f"{tick:g} %" for tick in ticks])
        place.minorticks_off()
        place.set_title(panel.title, fontsize=10)
        place.grid(alpha=0.25)
    places.flat[0].legend(frameon=False, fontsize=8)
    figure.supxlabel(axis, fontsize=10)
    figure.supylabel(errors, fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)
