"""The report of a traced run as a self-contained HTML page: parts of a step, streams, tables."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelcast.runtime.output_file import write_pieces
from kernelcast.runtime.views.formatting import seconds, shortened
from kernelcast.runtime.views.markup import Markup, element, number
from kernelcast.runtime.views.page import document, legend, picture, region, section, table, tile
from kernelcast.store.database import Database
from kernelcast.store.trace_report import TABLES, Rows, TraceReport

PART_TITLES = {
    "compute_ms": "compute",
    "exposed_communication_ms": "exposed communication",
    "memory_ms": "copies and fills alone",
    "idle_host_ms": "idle: host late",
    "idle_other_stream_ms": "idle: waits for another stream",
    "idle_dependency_ms": "idle: waits for what ran before it",
    "idle_unknown_ms": "idle: unknown",
}
_STYLES = {"compute": "backward", "communication": "reduce", "memory": "weight"}
_LEGEND = (
    ("backward", "compute"),
    ("reduce", "communication"),
    ("weight", "copies and fills"),
    ("idle", "idle"),
)
_WIDTH, _LEFT, _LANE, _TOP = 1200.0, 140.0, 22.0, 8.0
_MOST_LANES = 32
_LONGEST = 56  # characters of a kernel's name, so that the numbers stay visible
# Events of a class that are closer than this, in pixels, become one shape.
_PIXELS = 0.5


def write_trace_page(database: Database, report: TraceReport, path: Path) -> None:
    """Write the page of a report; the same database gives the same bytes.

    Raises:
        DataError: the file cannot be written.
    """
    write_pieces(path, [trace_page(database, report)])


def trace_page(database: Database, report: TraceReport) -> str:
    """The page of a report."""
    step_ms = sum(report.parts_ms.values())
    title = f"A traced step: {seconds(step_ms / 1e3)}"
    tiles = [tile("step", seconds(step_ms / 1e3), "mean over steps and ranks")] + [
        tile(PART_TITLES[part], f"{100 * ms / step_ms:.1f} %", seconds(ms / 1e3))
        for part, ms in report.parts_ms.items()
        if ms
    ]
    about = f"{report.hardware}; {len(report.ranks) or 1} rank(s), run {report.run_id[:12]}"
    header = element(
        "header",
        element("h1", title),
        element("p", about, class_="soft"),
        element("dl", *tiles, class_="tiles"),
    )
    return document(title, header, element("main", *_sections(database, report)))


def _sections(database: Database, report: TraceReport) -> Iterator[Markup]:
    if lanes := _lanes(database, report):
        yield section(
            "The first step, stream by stream", region("lanes of the first step", lanes), legend(_LEGEND)
        )
    for name, title in TABLES.items():
        if rows := getattr(report, name):
            yield section(title.capitalize(), _table(title.capitalize(), rows))


def _table(caption: str, rows: Rows) -> Markup:
    columns = [name for name in rows[0] if not name.endswith("_id") and name != "step_index"]
    texts = {place for place, name in enumerate(columns) if any(isinstance(row[name], str) for row in rows)}
    cells = [
        ["" if row[name] is None else shortened(str(row[name]), _LONGEST) for name in columns] for row in rows
    ]
    heads = [name.replace("_", " ") for name in columns]
    return table(heads, cells, caption=caption, text_columns=texts)


def _lanes(database: Database, report: TraceReport) -> Markup | None:
    """Streams of all ranks during the first marked step, or the whole trace, as SVG."""
    rows = database.connection.execute(
        "SELECT trace_event.rank, device, stream, class, start_us, duration_us FROM trace_event"
        " WHERE run_id = ? AND step_index IS (SELECT min(step_index) FROM trace_event WHERE run_id = ?)"
        " ORDER BY trace_event.rank, trace_id, device, stream, start_us",
        (report.run_id, report.run_id),
    )
    lanes: dict[tuple[object, ...], list[tuple[str, float, float]]] = defaultdict(list)
    starts: dict[object, float] = {}
    for rank, device, stream, class_, start_us, duration_us in rows:
        lanes[rank, device, stream].append((class_, start_us, start_us + duration_us))
        starts[rank] = min(starts.get(rank, start_us), start_us)
    if not lanes:
        return None
    span_us = max(end - starts[place[0]] for place, spans in lanes.items() for _, _, end in spans) or 1.0
    scale = (_WIDTH - _LEFT - 10) / span_us
    shapes: list[Markup] = []
    drawn = list(lanes.items())[:_MOST_LANES]
    for lane, (place, spans) in enumerate(drawn):
        y = _TOP + lane * _LANE
        name = f"rank {place[0]}, stream {place[2]}" if place[0] is not None else f"stream {place[2]}"
        shapes.append(element("text", name, x=_LEFT - 8, y=y + 14, class_="label"))
        shapes.append(element("rect", x=_LEFT, y=y, width=span_us * scale, height=_LANE - 4, class_="idle"))
        for class_, start_us, end_us in _merged(spans, _PIXELS / scale):
            shapes.append(
                element(
                    "rect",
                    x=_LEFT + (start_us - starts[place[0]]) * scale,
                    y=y,
                    width=number(max((end_us - start_us) * scale, 0.3)),
                    height=_LANE - 4,
                    class_=_STYLES[class_],
                )
            )
    description = f"One row per stream, time from left to right, {seconds(span_us * 1e-6)} in all."
    height = _TOP * 2 + len(drawn) * _LANE
    return picture("lanes", "What ran in the first step", description, *shapes, width=_WIDTH, height=height)


def _merged(spans: Sequence[tuple[str, float, float]], gap_us: float) -> Iterator[tuple[str, float, float]]:
    """Spans sorted by start, with nearly adjacent spans of a class merged."""
    current: tuple[str, float, float] | None = None
    for class_, start_us, end_us in spans:
        if current is not None and class_ == current[0] and start_us - current[2] <= gap_us:
            current = class_, current[1], max(current[2], end_us)
            continue
        if current is not None:
            yield current
        current = class_, start_us, end_us
    if current is not None:
        yield current
