"""The time of a traced run as a tree, as SVG: passes, annotations and modules, operators of the host, kernels."""

from collections.abc import Iterator

from kernelcast.runtime.views.formatting import seconds
from kernelcast.runtime.views.page import Markup, element, picture, rectangles
from kernelcast.store.database import Database

_TIMES = """
    SELECT CASE WHEN class = 'compute' THEN coalesce(nullif(direction, ''), 'unknown') ELSE class END,
        coalesce(scope, ''), host_operator, name, sum(exposed_us) AS time_us
    FROM trace_event WHERE run_id = ? GROUP BY 1, 2, 3, 4 HAVING time_us > 0
"""
_WIDTH, _ROW = 1200.0, 18.0
_LEAST = 0.5  # pixels of a frame
_LETTER = 6.8
_STYLES = {"forward": "forward", "recomputation": "forward", "communication": "reduce", "memory": "weight",
           "unknown": "idle"}  # fmt: skip
_TEXTS = {"forward": "in-forward", "idle": "in-forward", "weight": "in-weight"}


class _Frame:
    def __init__(self) -> None:
        self.time_us = 0.0
        self.inside: dict[str, _Frame] = {}


def flame_graph(database: Database, run_id: str) -> Markup | None:
    """The picture; None for a run without events. Every instant of a device counts once, and all ranks are summed."""
    root = _Frame()
    for pass_, scope, operator, kernel, time_us in database.connection.execute(_TIMES, (run_id,)):
        frame = root
        frame.time_us += time_us
        for name in filter(
            None, (pass_, *scope.split(" / "), operator, kernel if kernel != operator else "")
        ):
            frame = frame.inside.setdefault(name, _Frame())
            frame.time_us += time_us
    if not root.time_us:
        return None
    shapes, depth = [], 0
    for name, frame, left, level, pass_ in _placed(root, 0.0, 0, ""):
        width, depth = _WIDTH * frame.time_us / root.time_us, max(depth, level)
        style = _STYLES.get(pass_, "backward")
        share = f"{100 * frame.time_us / root.time_us:.1f} %"
        title = f"{name}, {seconds(frame.time_us * 1e-6)}, {share}"
        shapes.append(rectangles([(left, width)], level * _ROW, _ROW - 1, style, title))
        if letters := int(width / _LETTER - 1) if width > 5 * _LETTER else 0:
            text = name if len(name) <= letters else f"{name[: letters - 1]}…"
            place = {"x": left + width / 2, "y": level * _ROW + 12.5}
            shapes.append(element("text", text, class_=_TEXTS.get(style, "in-backward"), **place))
    description = "Time inside each part from left to right, what it contains below it."
    return picture("flame", "Time by pass, module, operator and kernel", description, *shapes,
                   width=_WIDTH, height=(depth + 1) * _ROW)  # fmt: skip


def _placed(
    frame: _Frame, left: float, level: int, pass_: str, scale: float = 0.0
) -> Iterator[tuple[str, _Frame, float, int, str]]:
    """Name, frame, left edge, level and pass of all frames that are wide enough, the longest first."""
    scale = scale or _WIDTH / frame.time_us
    for name, inner in sorted(frame.inside.items(), key=lambda item: (-item[1].time_us, item[0])):
        if inner.time_us * scale < _LEAST:
            break
        yield name, inner, left, level, pass_ or name
        yield from _placed(inner, left, level + 1, pass_ or name, scale)
        left += inner.time_us * scale
