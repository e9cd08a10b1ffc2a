"""Pages of the database or the traces that the explorer was started with, and the explorer's static files.

Static files are read once from the package, and served with ETags and a content security policy.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kernelcast.runtime.errors import DataError, needs_extra, shown
from kernelcast.runtime.views.page import Markup, asset_text, document, element, section, table

if TYPE_CHECKING:
    from kernelcast.store import Database

FOLDER = Path(__file__).parent / "assets"
COLOURS_NAME = "colours.css"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_ASSET_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def asset_routes(pages: Mapping[str, str]) -> list[Route]:
    """The page at / and its files under /assets/; only files of the package are served.

    `pages` are titles of other pages by path, for the navigation.
    """
    files = {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in sorted(FOLDER.rglob("*.*"))}
    files = {name: content for name, content in files.items() if Path(name).suffix in _TYPES}
    files[COLOURS_NAME] = asset_text(COLOURS_NAME).encode()
    answers = {name: _Asset(name, content) for name, content in files.items()}

    async def index(request: Request) -> Response:
        return answers["index.html"].response(request)

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in answers:
            raise HTTPException(404, f"file is {shown(name)}, expected one of the explorer's")
        return answers[name].response(request)

    listed = [{"path": path, "title": title} for path, title in {"/": "Layouts", **pages}.items()]

    async def navigation(request: Request) -> Response:
        return JSONResponse(listed, headers=HEADERS)

    return [Route("/", index), Route("/assets/{name:path}", asset), Route("/pages", navigation)]


class _Asset:
    def __init__(self, name: str, content: bytes) -> None:
        self._content, self._type = content, _TYPES[Path(name).suffix]
        self._tag = f'"{sha256(content).hexdigest()[:32]}"'

    def response(self, request: Request) -> Response:
        headers = {**HEADERS, "etag": self._tag, "content-security-policy": _ASSET_POLICY}
        if request.headers.get("if-none-match") == self._tag:
            return Response(status_code=304, headers=headers)
        return Response(self._content, headers={**headers, "content-type": self._type})


_POLICY = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_SHORT = 12  # of a run's id


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Routes of the pages, and their titles by path."""

    routes: Sequence[Route] = ()
    pages: Mapping[str, str] = field(default_factory=dict)

    @property
    def first(self) -> str:
        return next(iter(self.pages), "/")


def open_material(paths: Sequence[Path], stack: ExitStack) -> Material:
    """Pages of a database or of traces; `stack` removes temporary files at its end.

    UsageError names the extra of a package that is missing; DataError a file that is neither a database nor a trace.
    """
    with needs_extra("explore DB|TRACE", "serve,collector"):
        from kernelcast.collector.ingest.open_traces import is_database, opened_traces
        from kernelcast.store.trace_report import traced_runs
    has_database = len(paths) == 1 and is_database(paths[0])
    # Every request opens the file again: a connection belongs to one thread, and other processes may add rows.
    database = stack.enter_context(opened_traces(paths))
    try:
        runs = traced_runs(database)
    except DataError:
        if not has_database:
            raise
        runs = []
    pages: dict[str, str] = {}
    routes: list[Route] = []
    if has_database:
        pages["/database"] = "Database"
        routes.append(_route("/database", pages, lambda request: _database(database.path)))
    if runs:
        pages["/traces"] = "Traces"
        routes.append(_route("/traces", pages, lambda request: _traces(database.path)))
        routes.append(
            _route("/traces/{run}", pages, lambda request: _run(database.path, request.path_params["run"]))
        )
    return Material(routes=routes, pages=pages)


def _route(path: str, pages: Mapping[str, str], answer: Callable[[Request], str]) -> Route:
    def endpoint(request: Request) -> Response:  # not async: Starlette runs it in a thread
        try:
            content = answer(request)
        except DataError as error:
            content = document("Not answered", element("h1", "Not answered"), element("p", str(error)))
        here = request.url.path
        links = [element("a", title, href=one, **({"aria_current": "page"} if one == here else {}))
                 for one, title in {"/": "Layouts", **pages}.items()]  # fmt: skip
        nav = element("nav", *(Markup(f"{link} ") for link in links), aria_label="Pages")
        headers = {**HEADERS, "content-security-policy": _POLICY}
        return Response(content.replace("<body>", f"<body>{nav}", 1), headers=headers, media_type="text/html")

    return Route(path, endpoint)


def _database(path: Path) -> str:
    from kernelcast.store import Database
    from kernelcast.store.trace_page import database_page

    with Database.open(path, read_only=True) as database:
        return database_page(database, path.name)


def _traces(path: Path) -> str:
    from kernelcast.store import Database
    from kernelcast.store.trace_report import trace_report, traced_runs

    with Database.open(path, read_only=True) as database:
        runs = traced_runs(database)
        if len(runs) == 1:
            return _report(database, runs[0])
        rows = []
        for run in runs:
            report = trace_report(database, run, top=1)
            step_ms = sum(report.parts_ms.values())
            link = element("a", run[:_SHORT], href=f"/traces/{run}")
            rows.append((link, report.hardware, f"{len(report.ranks) or 1}", f"{step_ms:,.3f} ms"))
    listed = table(
        ("run", "hardware", "ranks", "mean step"), rows, caption="Traced runs", text_columns=(0, 1)
    )
    return document("Traces", element("main", section("Traces", listed)))


def _run(path: Path, run: str) -> str:
    from kernelcast.store import Database
    from kernelcast.store.trace_report import traced_runs

    with Database.open(path, read_only=True) as database:
        if run not in traced_runs(database):
            raise HTTPException(404, f"run is {shown(run)}, expected one of /traces")
        return _report(database, run)


def _report(database: "Database", run: str) -> str:
    from kernelcast.store.trace_page import trace_page
    from kernelcast.store.trace_report import trace_report

    return trace_page(database, trace_report(database, run))
