"""What browsers on this machine may ask of a server on one of its ports, which has no passwords."""

import ipaddress
import re

from starlette.types import ASGIApp, Receive, Scope, Send

from kernelcast.runtime.errors import shown
from kernelcast.serve.responses import json_error

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::[0-9]{0,5})?")
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
            if name == b"host" and not _names_this_machine(text):
                error = json_error(400, f"Host is {shown(text)}, expected localhost or 127.0.0.1")
                return await error(scope, receive, send)
            if name == b"sec-fetch-site" and text.strip().lower() not in _OWN:
                error = json_error(403, f"Sec-Fetch-Site is {shown(text)}, expected a page of this server")
                return await error(scope, receive, send)
        return await self._inner(scope, receive, send)


def _names_this_machine(host: str) -> bool:
    """Whether a Host header is localhost or a loopback address, with any port (one may be forwarded).

    A browser that was told that another name has the address 127.0.0.1 (DNS rebinding) sends that other name.
    """
    found = _HOST.fullmatch(host.strip())
    if found is None:
        return False
    name = found["name"].strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
