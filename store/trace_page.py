"""Self-contained HTML pages: a traced run (parts of a step, streams, flame graph, tables), and a database.

The page of a database has coverage, noise, doubtful samples and hardware side by side.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelcast.runtime.output_file import write_pieces
from kernelcast.runtime.views.formatting import counted, seconds
from kernelcast.runtime.views.page import (
    Markup,
    bullets,
    document,
    element,
    legend,
    picture,
    rectangles,
    rows_table,
    section,
    tile,
    zoomed,
)
from kernelcast.store.database import Database
from kernelcast.store.querying import Question, questions
from kernelcast.store.trace_difference import Change, TraceComparison
from kernelcast.store.trace_report import PART_TITLES, TraceReport, named_steps, report_tables

_STYLES = {"compute": "backward", "communication": "reduce", "memory": "weight"}
_LEGEND = (
    ("backward", "compute"),
    ("reduce", "communication"),
    ("weight", "copies and fills"),
    ("idle", "idle"),
)
_FLAMES = (
    ("forward", "forward, recomputation"),
    ("backward", "backward"),
    *_LEGEND[1:3],
    ("idle", "unknown"),
)
_WIDTH, _LEFT, _LANE, _TOP = 1200.0, 140.0, 22.0, 8.0
_MOST_LANES = 32
_MOST_NAMED = 1000  # events with a tooltip
_MOST_SHOWN = 40  # rows of a table
_TICKS = 5
_NEAR = 0.5  # of a pixel: closer events of one class are one shape


def write_trace_page(
    database: Database, report: TraceReport, path: Path, *, notes: Sequence[str] = ()
) -> None:
    """Write the page of a report; the same database gives the same bytes. DataError where it cannot be written."""
    write_pieces(path, [trace_page(database, report, notes=notes)])


def trace_page(database: Database, report: TraceReport, *, notes: Sequence[str] = ()) -> str:
    """The page of a report; `notes` are about the reading of the traces."""
    step_ms = sum(report.parts_ms.values())
    title = f"A traced step: {seconds(step_ms / 1e3)}"
    tiles = [tile("step", seconds(step_ms / 1e3), "mean over steps and ranks")] + [
        tile(PART_TITLES[part], f"{100 * ms / step_ms:.1f} %", seconds(ms / 1e3))
        for part, ms in report.parts_ms.items()
        if ms
    ]
    about = f"{report.hardware}; {counted(len(report.ranks) or 1, 'rank')}, run {report.run_id[:12]}"
    return document(
        title, _header(title, about, tiles), element("main", *_noted(notes), *_sections(database, report))
    )


def write_difference_page(
    compared: TraceComparison, one: str, two: str, path: Path, *, notes: Sequence[str] = ()
) -> None:
    """Write the page of two runs side by side, called `one` and `two`. DataError where it cannot be written."""
    step = compared.step
    tiles = [tile(one, seconds((step.one_ms or 0.0) / 1e3), f"A, steps: {compared.one_steps}"),
             tile(two, seconds((step.two_ms or 0.0) / 1e3), f"B, steps: {compared.two_steps}")]  # fmt: skip
    about, parts = "Per step and rank.", "Parts of the step"
    tables = {parts: compared.parts, "Kernels": compared.kernels,
              "Operators of the host": compared.operators, "Annotations and modules": compared.modules}  # fmt: skip
    sections = [section(title, rows_table([_compared(one) for one in changes[:_MOST_SHOWN]],
                                         caption="In the order of a report." if title == parts
                                         else f"The largest changes first, at most {_MOST_SHOWN}."))
                for title, changes in tables.items() if changes]  # fmt: skip
    if compared.causes:
        sections.insert(0, section("Causes", bullets(*(cause.line for cause in compared.causes))))
    sections[:0] = _noted(notes)
    write_pieces(
        path,
        [document("Two traced runs", _header("Two traced runs", about, tiles), element("main", *sections))],
    )


def _compared(change: Change) -> dict[str, Any]:
    times = {"A_ms": change.one_ms, "B_ms": change.two_ms, "change_ms": change.change_ms}
    launches = {"A_launches": change.one_launches, "B_launches": change.two_launches}
    return {
        "name": PART_TITLES.get(change.name, change.name),
        **{name: None if ms is None else round(ms, 3) for name, ms in times.items()},
        "change_percent": round(100 * change.change_ms / change.one_ms, 1) if change.one_ms else None,
        "": change.kind,
        **{name: None if count is None else round(count, 1) for name, count in launches.items()},
    }


def _noted(notes: Sequence[str]) -> list[Markup]:
    return [section("Repaired or left out", bullets(*notes))] if notes else []


def _header(title: str, about: str, tiles: Iterable[Markup]) -> Markup:
    heading, text = element("h1", title), element("p", about, class_="soft")
    return element("header", heading, text, element("dl", *tiles, class_="tiles"))


def _sections(database: Database, report: TraceReport) -> Iterator[Markup]:
    if report.findings:
        yield section("What the ranks wait for", bullets(*(finding.line for finding in report.findings)))
    # The first step that counts, or the whole recording.
    whole = [one for one in report.steps if one["in_mean"]]
    drawn = min(whole, key=lambda one: one["step_index"] or 0, default={"step_index": None})
    if lanes := _lanes(database, report.run_id, drawn["step_index"]):
        title = f"{'The recording' if drawn['step_index'] is None else drawn['step']}, stream by stream"
        yield section(title, zoomed("lanes", "lanes of a step", lanes), legend(_LEGEND))
    if flames := flame_graph(database, report.run_id):
        yield section(
            "Passes, modules, operators and kernels", zoomed("flames", "flame graph", flames), legend(_FLAMES)
        )
    for table in report_tables():
        rows = getattr(report, table.name)
        if rows := named_steps(rows) if table.name == "steps" else rows:
            shown = [
                {k: v for k, v in row.items() if not k.endswith("_id") and k != "step_index"}
                for row in rows[:_MOST_SHOWN]
            ]
            cut = f" The first {_MOST_SHOWN} of {len(rows):,} rows." if len(rows) > _MOST_SHOWN else ""
            yield section(table.title.capitalize(), rows_table(shown, caption=f"{table.explanation}{cut}"))


def _lanes(database: Database, run_id: str, step: int | None) -> Markup | None:
    """Streams of all ranks during a step, or the whole trace, on one clock, as SVG."""
    rows = database.connection.execute(
        "SELECT rank, device, stream, class, name,"
        " coalesce(run_us, start_us - min(start_us) OVER (PARTITION BY rank)), duration_us FROM trace_event"
        " WHERE run_id = ? AND step_index IS ?"
        " ORDER BY rank, trace_id, device, stream, start_us",
        (run_id, step),
    )
    lanes: dict[tuple[int | None, ...], dict[str, list[tuple[float, float]]]] = {}
    named: list[tuple[float, float, tuple[int | None, ...], str, str]] = []
    for rank, device, stream, class_, name, start_us, duration_us in rows:
        lane = rank, device, stream
        if lane not in lanes and len(lanes) == _MOST_LANES:
            break
        lanes.setdefault(lane, {}).setdefault(class_, []).append((start_us, start_us + duration_us))
        named.append((duration_us, start_us, lane, class_, name))
    if not lanes:
        return None
    spans = [span for of_lane in lanes.values() for of_class in of_lane.values() for span in of_class]
    first_us = min(start for start, _ in spans)
    span_us = max(end for _, end in spans) - first_us or 1.0
    scale = (_WIDTH - _LEFT - 10) / span_us
    shapes: list[Markup] = []
    rows_y = {key: _TOP + lane * _LANE for lane, key in enumerate(lanes)}
    for key, of_lane in lanes.items():
        (rank, _, stream), y = key, rows_y[key]
        text = f"stream {stream}" if rank is None else f"rank {rank}, stream {stream}"
        shapes.append(element("text", text, x=_LEFT - 8, y=y + 14, class_="label"))
        shapes.append(element("rect", x=_LEFT, y=y, width=span_us * scale, height=_LANE - 4, class_="idle"))
        for class_, of_class in of_lane.items():
            places = _merged(_LEFT + scale * (np.array(of_class) - first_us))
            shapes.append(rectangles(places, y, _LANE - 4, _STYLES[class_]))
    # The longest events again, one by one, with their names.
    for duration_us, start_us, key, class_, name in sorted(named, key=lambda one: -one[0])[:_MOST_NAMED]:
        left = _LEFT + scale * (start_us - first_us)
        title = f"{name}, {seconds(duration_us * 1e-6)} from {seconds((start_us - first_us) * 1e-6)}"
        shapes.append(
            rectangles([(left, scale * duration_us)], rows_y[key], _LANE - 4, _STYLES[class_], title)
        )
    bottom = _TOP + len(lanes) * _LANE
    for tick in range(_TICKS + 1):
        x = _LEFT + scale * span_us * tick / _TICKS
        shapes.append(
            element("text", seconds(span_us * 1e-6 * tick / _TICKS), x=x, y=bottom + 16, class_="label")
        )
    description = f"One row per stream, time from left to right, {seconds(span_us * 1e-6)} in all."
    return picture("lanes", "Events of a step", description, *shapes, width=_WIDTH, height=bottom + 16 + _TOP)


def _merged(spans: npt.NDArray[np.float64]) -> Iterator[tuple[float, float]]:
    """(left, width) of spans [spans, 2] in order of their start, nearly adjacent ones as one."""
    starts, ends = spans[:, 0], np.maximum.accumulate(spans[:, 1])
    first = np.flatnonzero(np.append(True, starts[1:] > ends[:-1] + _NEAR))
    last = np.append(first[1:] - 1, len(spans) - 1)
    yield from zip(starts[first].tolist(), (ends[last] - starts[first]).tolist(), strict=True)


_MOST_ROWS = 2000


def database_page(database: Database, name: str) -> str:
    """The page of a database called `name`; a click on a heading sorts the table. DataError where it is damaged."""
    counts = database.row_counts()
    [dates] = database.query("SELECT min(measured_at) AS first, max(measured_at) AS last FROM sample")
    hardware = database.hardware_list()
    between = f"{dates['first'][:10]} to {dates['last'][:10]}" if dates["first"] else "nothing measured"
    tiles = (
        tile("samples", f"{counts['sample']:,}", between),
        tile("kinds of hardware", f"{len(hardware):,}"),
        tile("software stacks", f"{len(database.software_list()):,}"),
        tile("kernels", f"{counts['kernel']:,}", "stored one by one"),
    )
    about = "; ".join(one.description for one in hardware) or "no hardware"
    # SQLite has logarithms only where it was compiled with them.
    database.connection.create_function("ln", 1, math.log, deterministic=True)
    database.connection.create_function("exp", 1, math.exp, deterministic=True)
    tables = (_table(database, one) for one in questions("database_page.sql"))
    return document(f"Database {name}", _header(name, about, tiles), element("main", *tables), sorts=True)


def _table(database: Database, asked: Question) -> Markup:
    title, rows = asked.title, database.query(f"{asked.sql} LIMIT {_MOST_ROWS}")
    if not rows:
        return section(title, element("p", "No rows.", class_="soft"))
    cut = f" The first {_MOST_ROWS:,} rows." if len(rows) == _MOST_ROWS else ""
    return section(
        title, rows_table(rows, caption=f"{asked.explanation}{cut} A heading sorts.", class_="sortable")
    )


_TIMES = """
    SELECT CASE WHEN class = 'compute' THEN coalesce(nullif(direction, ''), 'unknown') ELSE class END,
        coalesce(scope, ''), host_operator, name, sum(exposed_us) AS time_us
    FROM trace_event WHERE run_id = ? GROUP BY 1, 2, 3, 4 HAVING time_us > 0
"""
_WIDTH, _ROW = 1200.0, 18.0
_LEAST = 0.5  # pixels of a frame
_LETTER = 6.8
_FLAME_STYLES = {"forward": "forward", "recomputation": "forward", "communication": "reduce", "memory": "weight",
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
        style = _FLAME_STYLES.get(pass_, "backward")
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
