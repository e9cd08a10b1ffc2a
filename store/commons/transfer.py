"""Files of a commons over http(s) or from a folder: never more bytes than stated, never longer than they may take.

Through urllib, with proxies and certificates as the system has them (HTTPS_PROXY, SSL_CERT_FILE).
"""

import http.client
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path
from typing import IO, Any
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urljoin, urlsplit

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import DataError, one_line
from kernelcast.runtime.small_file import open_regular
from kernelcast.store.commons.sources import Source

_BLOCK_BYTES = 1 << 16
_ATTEMPTS = 3
_SILENT_S = 30.0
"""A server that sends nothing for longer is given up."""
_SLOWEST_BYTES_PER_S = 20_000
_GONE = (404, 410)


class Missing(DataError):
    """The server, or the folder, has no file of that name."""


class Interrupted(DataError):
    """The transfer ended before its end; trying again continues it."""


@dataclass(slots=True, kw_only=True)
class Transfer:
    """Fetches files of one source, and counts its requests and bytes."""

    source: Source
    silent_s: float = _SILENT_S
    slowest_bytes_per_s: float = _SLOWEST_BYTES_PER_S
    requests: int = 0
    received_bytes: int = 0

    def read(self, name: str, most_bytes: int) -> bytes:
        """A small file; Missing, Interrupted or another DataError where it cannot be fetched."""
        pieces = list(self._pieces(name, 0, most_bytes))
        return b"".join(piece for _, piece in pieces)

    def download(self, name: str, target: Path, *, size_bytes: int, digest: str) -> None:
        """A file with a known digest. The part that `target` already has is kept, and only the rest is fetched.

        Errors as `read`; DataError where its size or digest is another: `target` is deleted then.
        """
        for attempt in range(_ATTEMPTS):
            have = target.stat().st_size if target.exists() else 0
            try:
                if have < size_bytes:
                    with target.open("ab") as stream:
                        for is_start, piece in self._pieces(name, have, size_bytes):
                            if is_start:  # the server has no ranges
                                stream.truncate(0)
                            stream.write(piece)
                if target.stat().st_size < size_bytes:
                    raise Interrupted(
                        f"{self._named(name)}: ended after {target.stat().st_size:,} of {size_bytes:,} bytes"
                    )
            except Interrupted:
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            with target.open("rb") as content:
                found = file_digest(content, "sha256").hexdigest()
            if found == digest:
                return
            target.unlink()
            if not have:  # else the earlier bytes were other ones: once more from the start
                break
        raise DataError(f"{self._named(name)}: its SHA-256 is {found}, expected {digest} as the index states")

    def _named(self, name: str) -> str:
        return one_line(f"{self.source.address.rstrip('/')}/{name}")

    def _pieces(self, name: str, start: int, most_bytes: int) -> Iterator[tuple[bool, bytes]]:
        """Bytes from `start`, up to `most_bytes` of the file; True with the first if they are from its beginning."""
        self.requests += 1
        named, until_s = (
            self._named(name),
            time.monotonic() + self.silent_s + most_bytes / self.slowest_bytes_per_s,
        )
        with self._failures(named), self._open(name, start) as (stream, begin):
            have, is_start = begin, begin == 0 and start > 0
            while (
                piece := stream.read1(_BLOCK_BYTES) if hasattr(stream, "read1") else stream.read(_BLOCK_BYTES)
            ):
                have += len(piece)
                self.received_bytes += len(piece)
                if have > most_bytes:
                    raise DataError(f"{named}: has more than {most_bytes:,} bytes, expected no more")
                yield is_start, piece
                is_start = False
                if time.monotonic() > until_s:
                    raise Interrupted(
                        f"{named}: is slower than {self.slowest_bytes_per_s:,.0f} bytes/s, given up"
                    )

    @contextmanager
    def _open(self, name: str, start: int) -> Iterator[tuple[Any, int]]:
        """The file from `start` or, where that cannot be had, from its beginning; and which of them."""
        address = urlsplit(self.source.address)
        if address.scheme == "file":
            with open_regular(Path(unquote(address.path), name)) as file:
                file.seek(start)
                yield file, start
            return
        asked = request.Request(urljoin(self.source.address.rstrip("/") + "/", name))
        asked.add_header("User-Agent", "kernelcast")
        if start:
            asked.add_header("Range", f"bytes={start}-")
        try:
            answer = _opener(self.source.other_hosts).open(asked, timeout=self.silent_s)
        except HTTPError as error:
            if not (start and error.code == 416):
                raise
            error.close()
            asked.remove_header("Range")
            answer = _opener(self.source.other_hosts).open(asked, timeout=self.silent_s)
        with answer:
            is_part = answer.status == 206
            stated = re.fullmatch(r"bytes (\d{1,18})-.*", answer.headers.get("Content-Range", ""))
            if is_part and not (stated and int(stated[1]) == start):
                raise DataError(f"answered with another range than requested, {start:,} bytes on")
            yield answer, start if is_part else 0

    @contextmanager
    def _failures(self, named: str) -> Iterator[None]:
        try:
            yield
        except DataError as error:
            if named not in str(error):
                error.within(named)
            raise
        except HTTPError as error:
            error.close()
            if error.code in _GONE:
                raise Missing(f"{named}: is missing on the server ({error.code})") from error
            raise DataError(
                f"{named}: cannot be fetched ({error.code} {one_line(str(error.reason))[:80]})"
            ) from error
        except FileNotFoundError as error:
            raise Missing(f"{named}: no such file") from error
        except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
            raise Interrupted(
                f"{named}: interrupted ({one_line(str(error))[:120] or type(error).__name__})"
            ) from error
        except URLError as error:
            if isinstance(error.reason, TimeoutError | ConnectionResetError):
                raise Interrupted(f"{named}: interrupted ({one_line(str(error.reason))[:120]})") from error
            raise DataError(f"{named}: cannot be fetched ({one_line(str(error.reason))[:120]})") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{named}: cannot be fetched ({one_line(str(reason))[:120]})") from error


class _Redirects(request.HTTPRedirectHandler):
    """Follows redirects to the same host, to others where they are allowed, and never from https to http."""

    def __init__(self, other_hosts: bool) -> None:
        self.other_hosts = other_hosts

    def redirect_request(
        self, req: request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> request.Request | None:
        there, here = urlsplit(newurl), urlsplit(req.full_url)
        fp.close()
        if there.scheme not in ("http", "https") or (here.scheme, there.scheme) == ("https", "http"):
            raise DataError(f"redirects to {one_line(newurl)[:200]}, expected {here.scheme}")
        if there.netloc != here.netloc and not self.other_hosts:
            raise DataError(
                f"redirects to the host {one_line(there.netloc)[:200]}, expected {here.netloc}"
                " (commons add --other-hosts allows it)"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(other_hosts: bool) -> request.OpenerDirector:
    opener = request.OpenerDirector()  # without handlers of ftp:, file: and data:
    for handler in (
        request.ProxyHandler(),
        request.UnknownHandler(),
        request.HTTPHandler(),
        request.HTTPSHandler(context=ssl.create_default_context()),
        request.HTTPDefaultErrorHandler(),
        _Redirects(other_hosts),
        request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener
