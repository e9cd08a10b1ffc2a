"""Reading the bytes of a request, within limits."""

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import Request

from kernelcast.serve.limits import Limits
from kernelcast.serve.responses import media_type


class TooLarge(HTTPException):
    """A body that is larger than it may be; it is answered while it is still being sent (`Lingering`)."""


async def content_of(request: Request, media: str, limits: Limits) -> bytes:
    """The request's body; refused when it is of another type, too large or too slow.

    Raises:
        HTTPException: 408, 413 or 415.
    """
    found = media_type(request)
    if found != media:
        raise HTTPException(415, f"content type is {found!r:.80}, expected {media}")
    most = limits.max_body_bytes
    too_large = TooLarge(413, f"body is too large, expected at most {most} bytes")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > most):
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_s):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        raise HTTPException(408, f"body did not come within {limits.body_s:g} s") from None
    return b"".join(parts)
