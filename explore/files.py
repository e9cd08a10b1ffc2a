"""The explorer's static files: read once from the package, served with ETags and a content security policy."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kernelcast.runtime.errors import shown
from kernelcast.runtime.views.page import asset_text

FOLDER = Path(__file__).parent / "assets"
COLOURS_NAME = "colours.css"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
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
        headers = {**HEADERS, "etag": self._tag, "content-security-policy": _POLICY}
        if request.headers.get("if-none-match") == self._tag:
            return Response(status_code=304, headers=headers)
        return Response(self._content, headers={**headers, "content-type": self._type})
