"""A commons published once per session, keys, and web servers on loopback that do as they are told."""

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from kernelcast.store.commons.publish import publish

SMALL = Path(__file__).parents[2] / "data" / "small.db"


class Handler(SimpleHTTPRequestHandler):
    """Files of a folder, with ranges; `server.act` may answer in its place."""

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Range")))  # type: ignore[attr-defined]
        if self.server.act(self):  # type: ignore[attr-defined]
            return
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(found[1]) if found else 0
        self.answer(content[start:], 206 if found else 200, start=start, whole=len(content))

    def answer(
        self, content: bytes, status: int = 200, *, start: int = 0, whole: int = 0, **headers: str
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{whole - 1}/{whole}")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def cut(self, content: bytes, after: int) -> None:
        """Promise all of it, send the first bytes, and close the connection."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:after])
        self.wfile.flush()
        self.connection.close()

    def drip(self, content: bytes) -> None:
        """A byte at a time."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        for index in range(len(content)):
            try:
                self.wfile.write(content[index : index + 1])
            except OSError:
                return
            time.sleep(0.02)

    def log_message(self, *arguments: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    act: Callable[[Handler], object]
    asked: list[tuple[str, str | None]]

    def handle_error(self, *arguments: Any) -> None:
        pass

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


Serving = Callable[..., AbstractContextManager[Server]]


@pytest.fixture
def serving() -> Serving:
    @contextmanager
    def serve(folder: Path, act: Callable[[Handler], object] = lambda handler: False) -> Iterator[Server]:
        server = Server(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        server.act, server.asked = act, []
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    return serve


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Private keys `a` and `b`, and the list `signers` of site-a and site-b."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("OpenSSH is not installed")
    folder = tmp_path_factory.mktemp("keys")
    for name in "ab":
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)]
        subprocess.run(command, check=True)
    lines = [f"site-{name} {(folder / name).with_suffix('.pub').read_text()}" for name in "ab"]
    (folder / "signers").write_text("".join(lines))
    return folder


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Path:
    folder = tmp_path_factory.mktemp("commons") / "public"
    publish(SMALL, folder, key=keys / "a", about={"site": "Site A"})
    return folder


@pytest.fixture
def public(once: Path, tmp_path: Path) -> Path:
    """A copy of a commons of small.db, signed by site-a."""
    return Path(shutil.copytree(once, tmp_path / "public"))
