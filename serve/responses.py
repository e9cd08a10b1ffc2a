"""Answers as bytes: JSON, or text for clients that are shell scripts."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from kernelcast.runtime.errors import one_line
from kernelcast.runtime.json_text import json_text

JSON, TEXT, HTML = "application/json", "text/plain", "text/html"


def media_type(request: Request) -> str:
    """The content type of a request's body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def json_bytes(values: Mapping[str, Any]) -> bytes:
    """JSON in ASCII; other characters are escaped."""
    return json_text(values).encode()


def text_bytes(text: str) -> bytes:
    """UTF-8; what is no character in it is escaped."""
    return text.encode("utf-8", errors="backslashreplace")


def json_error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error in one line."""
    return Response(json_bytes({"error": one_line(text)}), status, headers, JSON)


def text_error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as clients that are shell scripts read it: no limit on the first line, then why."""
    return Response(text_bytes(f"\nkernelcast: error: {one_line(text)}\n"), status, headers, TEXT)
