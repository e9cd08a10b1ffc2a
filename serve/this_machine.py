"""What browsers on this machine may ask of a server on one of its ports, which has no passwords."""

from starlette.types import ASGIApp, Receive, Scope, Send

from kernelcast.runtime.errors import shown
from kernelcast.runtime.host_header import names_this_machine
from kernelcast.serve.responses import json_error

_OWN = ("same-origin", "none")


class OfThisMachine:
    """Refuses requests that pages of other sites make, also GET: they would start work, if not read the answer.

    A browser says where a request comes from (Sec-Fetch-Site: `none` is its address bar). By DNS rebinding a page has
    the server's own origin, but then Host names another machine.
    """

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for name, value in scope.get("headers", ()) if scope["type"] == "http" else ():
            text = value.decode("latin-1")
            if name == b"host" and not names_this_machine(text):
                error = json_error(400, f"Host is {shown(text)}, expected localhost or 127.0.0.1")
                return await error(scope, receive, send)
            if name == b"sec-fetch-site" and text.strip().lower() not in _OWN:
                error = json_error(403, f"Sec-Fetch-Site is {shown(text)}, expected a page of this server")
                return await error(scope, receive, send)
        return await self._inner(scope, receive, send)
