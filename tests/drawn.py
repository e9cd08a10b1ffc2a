"""What stands in a matplotlib figure, as lines of text: not pixels, which depend on fonts and versions."""

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import Collection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D


def short(values: object) -> str:
    """Four digits each; of many their number, and the ends."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    ends = flat if len(flat) <= 30 else np.array([flat[0], flat[-1]])
    return f"{len(flat)}: " * (len(flat) > 30) + " ".join(f"{one:.4g}" for one in ends)


def of_collection(one: Collection) -> str:
    faces, edges = (
        [to_hex(colour, keep_alpha=True) for colour in kind]
        for kind in (one.get_facecolor(), one.get_edgecolor())
    )
    dots = one.get_sizes() if isinstance(one, PathCollection) else ()
    corners = () if len(dots) else one.get_paths()[0].vertices
    return (
        f"area {faces} {edges} width {short(one.get_linewidth())} at {short(one.get_offsets())} dots {short(dots)} "
        f"corners {short(corners)}{' bitmap' * bool(one.get_rasterized())}"
    )


def of_axes(axes: Axes, *, only: str = "") -> Iterator[str]:
    if not only:
        yield f"axes at {short(axes.get_position().extents)}{'' if axes.get_visible() else ' hidden'}"
    for name in only or "xy":
        axis, limits = getattr(axes, f"{name}axis"), sorted(getattr(axes, f"get_{name}lim")())
        ticks = [one for one in axis.get_majorticklocs() if limits[0] <= one <= limits[1]]
        named = axis.get_major_formatter().format_ticks(ticks)
        yield (
            f"  {name} {axis.get_scale()} {axis.get_label_text()!r} {short(getattr(axes, f'get_{name}lim')())}: "
            + (
                ", ".join(f"{tick:.4g} {text!r}" for tick, text in zip(ticks, named, strict=True))
                + f"; {len(axis.get_minorticklocs())} minor"
            )
        )
    yield f"  spines {[name for name, spine in axes.spines.items() if spine.get_visible()]}"
    for line in axes.lines:
        values = line.get_xydata() if type(line) is Line2D else (line.get_xy1(), line.get_xy2())
        label = line.get_label() if not str(line.get_label()).startswith("_") else ""
        yield (
            f"  line {to_hex(line.get_color())} alpha {line.get_alpha()} width {line.get_linewidth():g} "
            f"{line.get_linestyle()} {line.get_marker()} {line.get_markersize():g} {line.get_fillstyle()} {label!r} "
            f"{short(values)}{' bitmap' * bool(line.get_rasterized())}"
        )
    for one in axes.collections:
        yield f"  {of_collection(one)}"
    for text in axes.texts:
        yield f"  text {text.get_text()!r} {text.get_fontsize():g} at {short(text.xy)} + {text.xyann}"  # type: ignore[attr-defined]
    if (legend := axes.get_legend()) is not None:
        names, size = [one.get_text() for one in legend.get_texts()], legend.get_texts()[0].get_fontsize()
        look = f"{legend._loc} {legend._ncols} {legend.get_frame_on()} {size:g}"
        yield f"  legend {legend.get_title().get_text()!r} {names} {look}"
