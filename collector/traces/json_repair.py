"""Repairs of a trace's text: invalid JSON from profilers, path names and transfers."""

import re
from collections import Counter

_BOM = b"\xef\xbb\xbf"
# A JSON string, or a number that JSON lacks. Everything between two matches stays unchanged.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\bInfinity\b|\bNaN\b', re.DOTALL)
_BAD_ESCAPE = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE_PAIR = re.compile(rb"\\.", re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_SUSPECT = re.compile(rb"[\x00-\x1f\\]")


def repaired(content: bytes) -> tuple[bytes, Counter[str]]:
    """The text with all invalid JSON replaced, and the number of repairs of each kind."""
    found: Counter[str] = Counter()
    if content.startswith(_BOM):
        content = content[len(_BOM) :]
        found["byte order mark"] += 1
    try:
        content.decode()
    except UnicodeDecodeError:
        text = content.decode(errors="replace")
        found["byte that is not UTF-8"] += text.count("\ufffd") - content.count("\ufffd".encode())
        content = text.encode()

    def token(match: re.Match[bytes]) -> bytes:
        text = match.group()
        if text[:1] != b'"':
            found["number that JSON does not have (NaN, Infinity)"] += 1
            return b"null"
        return _text(text, found) if _SUSPECT.search(text) else text

    return _TOKEN.sub(token, content), found


def _text(text: bytes, found: Counter[str]) -> bytes:
    def escape(match: re.Match[bytes]) -> bytes:
        pair = match.group()
        if pair != b"\\u" and not _BAD_ESCAPE.match(pair):
            return pair
        if pair == b"\\u" and not _BAD_ESCAPE.match(text, match.start()):
            return pair
        found["backslash that escapes nothing"] += 1
        return b"\\\\" + pair[1:]

    def control(match: re.Match[bytes]) -> bytes:
        found["control character in a text"] += 1
        return b"\\u%04x" % match.group()[0]

    return _CONTROL.sub(control, _ESCAPE_PAIR.sub(escape, text))
