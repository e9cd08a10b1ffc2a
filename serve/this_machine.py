"""Accepts requests to a port of this machine only under its own host names."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from kernelcast.runtime.errors import shown
from kernelcast.runtime.host_header import names_this_machine
from kernelcast.serve.responses import json_error


class OfThisMachine:
    """Refuses a Host that names another machine: with DNS rebinding, a web page could ask and read the answer."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for host in Headers(scope=scope).getlist("host"):
                if not names_this_machine(host):
                    text = f"Host is {shown(host)}, expected localhost or 127.0.0.1"
                    return await json_error(400, text)(scope, receive, send)
        return await self._inner(scope, receive, send)
