"""What the report's plots are drawn on: figures that become SVG texts, in the reader's light or dark scheme.

Text and lines take their colours through CSS variables inside the SVG; the points' colours are readable on both.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from kernelcast.train.report.ticks import log_ticks

INK, FAINT = "#010101", "#020202"
"""Stand for the reader's colours of text and of grid lines."""

Size = tuple[float, float]
"""Width and height of a figure in inches."""

_STYLE = (
    "<style>svg{--ink:#333;--faint:#ddd}"
    "@media(prefers-color-scheme:dark){svg{--ink:#ccc;--faint:#444}}</style>"
)
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kernelcast",
    "text.parse_math": False,
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handletextpad": 0.1,
    "legend.borderaxespad": 0.2,
    "savefig.transparent": True,
    "savefig.dpi": 130,
}


@contextmanager
def canvas(inches: Size) -> Iterator[tuple[Figure, Callable[[], str]]]:
    """A figure, and what turns it into an SVG's text; the same figure always gives the same text."""
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=inches, layout="constrained")
        FigureCanvasSVG(figure)

        def written() -> str:
            stream = StringIO()
            figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
            return _themed(stream.getvalue())

        yield figure, written


def _themed(svg: str) -> str:
    """The SVG alone on one line, its placeholder colours as CSS variables, its fonts the reader's."""
    svg = svg[svg.index("<svg") :].replace(INK, "var(--ink)").replace(FAINT, "var(--faint)")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"'DejaVu Sans',[^;\"]*sans-serif", "system-ui, sans-serif", svg)
    svg = re.sub(r"\s+", " ", re.sub(r">\s+<", "><", svg)).strip()
    return svg.replace(">", f">{_STYLE}", 1)


def logarithmic(
    axis: Any,
    low: float,
    high: float,
    text: Callable[[float], str],
    ticks: Sequence[float] = (),
    *,
    most: int = 6,
) -> None:
    """Make an axis logarithmic from `low` to `high`, with round ticks or the given ones, each labelled by `text`."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (low, high)})
    chosen = list(ticks) or log_ticks(low, high, most=most)
    axis.set_major_locator(FixedLocator(chosen))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FixedFormatter([text(tick) for tick in chosen]))
