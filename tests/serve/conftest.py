"""A real `kernelcast serve` in a process of its own, and a client that talks HTTP over its Unix socket."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

PATIENCE_S = 1200


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("kernelcast", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(str(self._path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which is JSON."""
        assert self.headers["content-type"] == "application/json", self
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The line of an error."""
        (line,) = self.json.values()
        assert list(self.json) == ["error"]
        assert "\n" not in line
        return cast(str, line)


@dataclass(kw_only=True)
class Server:
    """A running server. `where` is what it printed: unix:PATH or http://HOST:PORT."""

    process: "subprocess.Popen[str]"
    where: str
    log: Path

    def connection(self) -> http.client.HTTPConnection:
        """A new connection."""
        kind, _, rest = self.where.partition(":")
        if kind == "unix":
            return UnixConnection(Path(rest))
        return http.client.HTTPConnection(rest.removeprefix("//"), timeout=PATIENCE_S)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Reply:
        """One request on a connection of its own."""
        connection = self.connection()
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(status=response.status, headers=names, body=response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Reply:
        """GET."""
        return self.request("GET", path)

    def post(self, path: str, values: Any) -> Reply:
        """POST of JSON."""
        return self.request("POST", path, json.dumps(values).encode(), {"Content-Type": "application/json"})

    def script(self, text: bytes, query: str = "") -> Reply:
        """POST of a batch script."""
        return self.request("POST", f"/walltime{query}", text, {"Content-Type": "text/plain"})

    def metric(self, name: str) -> float:
        """One figure of /metrics, with its labels."""
        for line in self.get("/metrics").body.decode().splitlines():
            found, _, value = line.rpartition(" ")
            if found == name:
                return float(value)
        raise AssertionError(f"no {name}")

    def digest(self) -> str:
        """Of the bundle that answers."""
        return cast(str, self.get("/health").json["bundle_digest"])

    def memory_bytes(self) -> int:
        """Resident memory of the process."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def processor_s(self) -> float:
        """CPU time of the process so far, which other work on the machine does not change."""
        cells = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(cells[11]) + int(cells[12])) / os.sysconf("SC_CLK_TCK")

    def open_files(self) -> int:
        """Files and sockets that the process has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def stop(self) -> int:
        """End it by SIGTERM; its status."""
        self.signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE_S)


Start = Callable[..., Server]


@pytest.fixture(name="until", scope="session")
def until_fixture() -> Callable[[Callable[[], bool]], None]:
    """Waits until something holds."""

    def until(holds: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end
            time.sleep(0.02)

    return until


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short: that of a Unix socket has at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="kc"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def start(folder: Path, make_bundle: Callable[..., Path]) -> Iterator[Start]:
    """Starts servers, by default with a small bundle on a socket; ends those that still run."""
    with starting(folder, make_bundle) as begin:
        yield begin


@contextmanager
def starting(folder: Path, make_bundle: Callable[..., Path]) -> Iterator[Start]:
    """What `start` gives, for sockets and logs in `folder`."""
    started: list[Server] = []

    def begin(
        *options: str, bundle: Path | None = None, site: Path | None = None, listen: str = ""
    ) -> Server:
        where = ["--listen", listen] if listen else ["--socket", str(folder / "s")]
        command = [sys.executable, "-m", "kernelcast.cli.main", "serve", "--bundle"]
        log = folder / f"log{len(started)}"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [*command, str(bundle or make_bundle()), *where, *options],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "KERNELCAST_SITE": str(site or "")},
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        server = Server(process=process, where=line.split(": ")[0].strip(), log=log)
        started.append(server)
        assert line, log.read_text()
        return server

    yield begin
    for server in started:
        if server.process.poll() is None:
            server.stop()
        assert server.process.stdout is not None
        server.process.stdout.close()


@pytest.fixture(scope="module")
def server(make_bundle_in: Callable[[Path], Callable[..., Path]]) -> Iterator[Server]:
    """A server with a small bundle, shared by the tests of a file: what counts or limits requests takes `start`."""
    folder = Path(tempfile.mkdtemp(prefix="kc"))
    with starting(folder, make_bundle_in(folder)) as begin:
        yield begin()
    shutil.rmtree(folder)
